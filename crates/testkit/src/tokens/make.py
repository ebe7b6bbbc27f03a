#!/usr/bin/env python3
"""Makes tokens.json: keys of an issuer, tokens signed with them, and tokens that nobody must accept.

Run it in this directory to make it anew. Private keys are not kept, so all tokens change then.
"""
import base64, hashlib, hmac, json

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

ISSUER, OTHER = "https://issuer.example", "https://other.example"
FAR = 4102444800  # the year 2100


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value, length=None):
    return b64(value.to_bytes(length or (value.bit_length() + 7) // 8, "big"))


SIZES = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}
rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
small = rsa.generate_private_key(public_exponent=65537, key_size=1024)
stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
curves = {"256": ec.SECP256R1(), "384": ec.SECP384R1(), "512": ec.SECP521R1()}
points = {size: ec.generate_private_key(curve) for size, curve in curves.items()}
edwards = ed25519.Ed25519PrivateKey.generate()


def sign(alg, message, key):
    kind, size = alg[:2], alg[2:]
    if alg == "EdDSA":
        return key.sign(message)
    digest = SIZES[size]()
    if kind == "RS":
        return key.sign(message, padding.PKCS1v15(), digest)
    if kind == "PS":
        return key.sign(message, padding.PSS(padding.MGF1(digest), digest.digest_size), digest)
    r, s = utils.decode_dss_signature(key.sign(message, ec.ECDSA(digest)))
    length = (key.curve.key_size + 7) // 8
    return r.to_bytes(length, "big") + s.to_bytes(length, "big")


def raw(header, claims, signature=b""):
    message = f"{b64(header)}.{b64(claims)}"
    signature = signature(message.encode()) if callable(signature) else signature
    return f"{message}.{b64(signature)}"


def token(alg="ES256", key=None, kid="ec256", header=(), **claims):
    key = key or points["256"]
    head = {"alg": alg, "typ": "JWT", **({"kid": kid} if kid else {}), **dict(header)}
    body = {"iss": ISSUER, "sub": "ann", "aud": "web", "exp": FAR, **claims}
    body = {name: value for name, value in body.items() if value is not None}
    return raw(json.dumps(head).encode(), json.dumps(body).encode(), lambda message: sign(alg, message, key))


def rsa_jwk(key, kid, **more):
    n = key.public_key().public_numbers()
    return {"kty": "RSA", "kid": kid, "n": number(n.n), "e": number(n.e), **more}


def ec_jwk(size, kid):
    key = points[size]
    n, length = key.public_key().public_numbers(), (key.curve.key_size + 7) // 8
    return {"kty": "EC", "kid": kid, "crv": {"512": "P-521"}.get(size, f"P-{size}"), "use": "sig",
            "x": number(n.x, length), "y": number(n.y, length)}


def plain(key):
    return key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


pem = rsa_key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
keys = [rsa_jwk(rsa_key, "rsa"), *[ec_jwk(size, f"ec{size}") for size in points],
        {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": b64(plain(edwards))}]
by_alg = {f"{kind}{size}": token(f"{kind}{size}", rsa_key, "rsa") for kind in ("RS", "PS") for size in SIZES}
by_alg |= {f"ES{size}": token(f"ES{size}", key, f"ec{size}") for size, key in points.items()}
by_alg["EdDSA"] = token("EdDSA", edwards, "ed")

hs = lambda secret: lambda message: hmac.new(secret, message, hashlib.sha256).digest()
claims = json.dumps({"iss": ISSUER, "sub": "ann", "aud": "web", "exp": FAR}).encode()
good = by_alg["ES256"]
head, body, signature = good.split(".")
rs_head, rs_body, _ = by_alg["RS256"].split(".")
bad = {
    "alg none": raw(b'{"alg":"none"}', claims),
    "alg None": raw(b'{"alg":"None"}', claims),
    "alg none with a signature": f'{b64(b"""{"alg":"none"}""")}.{body}.{signature}',
    "no algorithm": raw(b'{"typ":"JWT"}', claims),
    "HS256 with the public key": raw(b'{"alg":"HS256","kid":"rsa"}', claims, hs(pem)),
    "HS256 with the modulus": raw(b'{"alg":"HS256","kid":"rsa"}', claims, hs(rsa_key.public_key().public_numbers().n.to_bytes(256, "big"))),
    "HS256 with nothing": raw(b'{"alg":"HS256"}', claims, hs(b"")),
    "RS256 by a stranger": token("RS256", stranger, "rsa"),
    "a stranger's own key in the header": token("RS256", stranger, None, header={"jwk": rsa_jwk(stranger, "x")}),
    "a stranger's address in the header": token("RS256", stranger, "x", header={"jku": "https://evil.example/keys"}),
    "the name of another key": token("ES256", points["256"], "ec384"),
    "the algorithm of another key": raw(b'{"alg":"ES256","kid":"rsa"}', claims, lambda message: sign("RS256", message, rsa_key)),
    "a name that climbs": token("RS256", stranger, "../../../../dev/null"),
    "a name that asks": token("RS256", stranger, "rsa' OR '1'='1"),
    "another signature algorithm": raw(b'{"alg":"RS384","kid":"rsa"}', claims, lambda message: sign("RS256", message, rsa_key)),
    "a signature in DER": raw(b'{"alg":"ES256","kid":"ec256"}', claims, lambda message: points["256"].sign(message, ec.ECDSA(hashes.SHA256()))),
    "a signature of zeros": raw(b'{"alg":"ES256","kid":"ec256"}', claims, bytes(64)),
    "no signature": f"{head}.{body}.",
    "other claims": f"{head}.{b64(claims.replace(b'ann', b'bob'))}.{signature}",
    "two parts": f"{head}.{body}",
    "four parts": f"{good}.x",
    "padding": f"{head}.{body}.{signature}==",
    "loose bits": good[:-1] + chr(ord(good[-1]) + 1),
    "crit": token(header={"crit": ["exp"]}),
    "a name twice in the claims": raw(b'{"alg":"ES256","kid":"ec256"}', b'{"iss":"%s","sub":"ann","aud":"web","sub":"root"}' % ISSUER.encode(), lambda message: sign("ES256", message, points["256"])),
    "a name twice in the header": raw(b'{"alg":"none","alg":"ES256","kid":"ec256"}', claims, lambda message: sign("ES256", message, points["256"])),
    "claims that are a list": raw(b'{"alg":"ES256","kid":"ec256"}', b"[]", lambda message: sign("ES256", message, points["256"])),
    "an issuer that is a list": token(iss=[ISSUER]),
    "another issuer": token(iss=OTHER),
    "no issuer": token(iss=None),
    "an issuer in another case": token(iss=ISSUER.upper()),
    "ended": token(exp=1000000000),
    "an end that is a text": token(exp="4102444800"),
    "not yet": token(nbf=FAR - 1),
    "huge": token(filler="x" * 20000),
    "deep": raw(b'{"alg":"ES256","kid":"ec256"}', b'{"a":' * 500 + b"1" + b"}" * 500, lambda message: sign("ES256", message, points["256"])),
}
of_claims = {
    "bob": token(sub="bob"),
    "other audience": token(aud="bank"),
    "two audiences": token(aud=["bank", "web"]),
    "no subject": token(sub=None),
    "roles": token(realm={"roles": ["reader", "admin"]}, scope="read write", azp="app", level=3, admin=True),
    "no end": token(exp=None),
}
out = {
    "issuer": ISSUER,
    "jwks": {"keys": keys},
    "rotated": {"keys": [ec_jwk("384", "ec384")]},
    "unusable": {"keys": [rsa_jwk(small, "small"), rsa_jwk(rsa_key, "enc", use="enc"), {"kty": "oct", "k": b64(b"secret")}]},
    "by_alg": by_alg,
    "of_claims": of_claims,
    "bad": bad,
}
with open("tokens.json", "w") as file:
    json.dump(out, file, indent=1)
    file.write("\n")
