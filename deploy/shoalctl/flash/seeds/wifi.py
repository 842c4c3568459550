"""Wi-Fi for a device: the derived key goes to the card, and the passphrase never does."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from shoal.errors import ConfigError

MAX_SSID_BYTES = 32
MIN_PASSPHRASE, MAX_PASSPHRASE = 8, 63

_KEY = re.compile(r"[0-9a-fA-F]{64}")
_CODES = """
AD AE AF AG AI AL AM AO AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR
BS BT BW BY BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ
EC EE EG ER ES ET FI FJ FK FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GT GU GW GY
HK HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ
LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV
MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW
PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD
TF TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE
YT ZA ZM ZW
"""
"""ISO 3166-1, which is what regulatory domains are named after."""
_COUNTRIES = frozenset(_CODES.split())


@dataclass(frozen=True, slots=True)
class Wifi:
    """A wireless network that a device joins.

    Example:
        >>> Wifi.derive("IEEE", "password", "DE").ssid
        'IEEE'

    Attributes:
        ssid: Its name.
        key: The pre-shared key of WPA, 64 hexadecimal digits.
        country: Whose radio rules apply, two capitals.
        hidden: Whether the network doesn't announce its name.
    """

    ssid: str
    key: str = field(repr=False)
    country: str
    hidden: bool = False

    @classmethod
    def derive(cls, ssid: str, passphrase: str, country: str, *, hidden: bool = False) -> Wifi:
        """Derives the key of a network: PBKDF2-HMAC-SHA1, 4096 rounds (IEEE 802.11, J.4.1).

        Args:
            ssid: The network's name, 1-32 bytes of UTF-8.
            passphrase: 8-63 printable ASCII characters, or the 64 digits of a derived key.
            country: ISO 3166-1, two letters.
            hidden: Whether the network doesn't announce its name.

        Raises:
            ConfigError: One of them is not valid.
        """
        if not 0 < len(ssid.encode()) <= MAX_SSID_BYTES or not ssid.isprintable():
            raise ConfigError(
                f"Wi-Fi name {ssid!r}: use 1-{MAX_SSID_BYTES} bytes of printable characters"
            )
        return cls(ssid, _derived(ssid, passphrase), check_country(country), hidden)


def check_country(country: str) -> str:
    """Returns a country's code in capitals.

    Raises:
        ConfigError: There is no such country.
    """
    code = country.upper()
    if code == "UK":
        raise ConfigError("country 'UK': the code of the United Kingdom is GB")
    if code not in _COUNTRIES:
        raise ConfigError(
            f"country {country!r}: use the two letters of ISO 3166, such as DE, GB, JP or US"
        )
    return code


def _derived(ssid: str, passphrase: str) -> str:
    if _KEY.fullmatch(passphrase):
        return passphrase.lower()
    printable = passphrase.isascii() and passphrase.isprintable()
    if not printable or not MIN_PASSPHRASE <= len(passphrase) <= MAX_PASSPHRASE:
        raise ConfigError(
            f"the Wi-Fi passphrase has {len(passphrase)} characters: WPA wants "
            f"{MIN_PASSPHRASE}-{MAX_PASSPHRASE} printable ASCII ones, or a key of 64 hex digits"
        )
    return hashlib.pbkdf2_hmac("sha1", passphrase.encode(), ssid.encode(), 4096, 32).hex()
