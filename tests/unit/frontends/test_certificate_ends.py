"""When certificates end."""

from pathlib import Path

from modserve.frontends.certificates import CertificateEnds

IN_2040, IN_2060 = 2_214_428_089.0, 2_845_580_089.0
SOON = """-----BEGIN CERTIFICATE-----
MIIBdzCCAR2gAwIBAgIUeUAmPd3lZUEca5qzZMy8p47GR1swCgYIKoZIzj0EAwIw
ETEPMA0GA1UEAwwGYSB0ZXN0MB4XDTI2MTEyNzIyNTQ0OVoXDTQwMDMwMzIyNTQ0
OVowETEPMA0GA1UEAwwGYSB0ZXN0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
DXACvfgwulCe75okjIrBtJcrYBwhCpgc/V9oqG+iH5jnN0ul7PnPcuOk6iKaA9x9
+nGaFqobGpyGTNfwadKpUqNTMFEwHQYDVR0OBBYEFCpkUvO2clBshiPo+O4knDdB
g768MB8GA1UdIwQYMBaAFCpkUvO2clBshiPo+O4knDdBg768MA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIhAM1tXYR9uU0FMQqg1SHfuVyqwm1fIqLa
ZffWMo2tLzWpAiBGiGAFhvhExuxVYTlGzHcHiejoLsk1rKfrDAlpy/sE8A==
-----END CERTIFICATE-----
"""
LATE = """-----BEGIN CERTIFICATE-----
MIIBeTCCAR+gAwIBAgIUXInlzDv+ykiAksLTOBaSJpq8NU0wCgYIKoZIzj0EAwIw
ETEPMA0GA1UEAwwGYSB0ZXN0MCAXDTI2MTEyNzIyNTQ0OVoYDzIwNjAwMzAzMjI1
NDQ5WjARMQ8wDQYDVQQDDAZhIHRlc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AATYgRTizi02yGdi3zXUUkzIGcODR1UErQbxCSb0EKfbujBuecf3H3S3MTudy8f9
UEim7HacbH+IYKFNghpeVK0Ro1MwUTAdBgNVHQ4EFgQU+hmaTWI2LWvyggjL6wNa
p4z98T4wHwYDVR0jBBgwFoAU+hmaTWI2LWvyggjL6wNap4z98T4wDwYDVR0TAQH/
BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiBia2R8adrNw4CMz1l5prMO3EvkyfKe
9WLt+dsNbhGrMgIhAPDVfzM/EArEWp4cH1PFrWOFZDzDwzWoOu0fDVCuNZYj
-----END CERTIFICATE-----
"""


def test_the_first_end_in_a_file(tmp_path: Path) -> None:
    one, chain = tmp_path / "a.pem", tmp_path / "chain.pem"
    one.write_text(LATE)
    chain.write_text(f"Some words\n{LATE}{SOON}")
    ends = CertificateEnds([one, chain, one])
    assert ends.read() == {str(one): IN_2060, str(chain): IN_2040}


def test_a_file_that_cannot_be_read_ends_as_it_did(tmp_path: Path) -> None:
    path, never = tmp_path / "a.pem", tmp_path / "b.pem"
    path.write_text(LATE)
    never.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    ends = CertificateEnds([path, never, tmp_path / "none"])
    for text in (LATE, "nothing", "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n"):
        path.write_text(text)
        assert ends.read() == {str(path): IN_2060}
    path.write_text(SOON)
    assert ends.read() == {str(path): IN_2040}
