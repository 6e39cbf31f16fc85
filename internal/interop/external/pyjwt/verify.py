"""Verifies one token with PyJWT, by the issuer's name."""
import json
import sys
import urllib.request

import jwt

asked = json.load(sys.stdin)
with urllib.request.urlopen(asked["issuer"] + "/.well-known/openid-configuration") as response:
    document = json.load(response)
if document["issuer"] != asked["issuer"]:
    sys.exit("a foreign issuer: " + document["issuer"])

try:
    key = jwt.PyJWKClient(document["jwks_uri"]).get_signing_key_from_jwt(asked["token"])
    jwt.decode(
        asked["token"],
        key.key,
        algorithms=document["id_token_signing_alg_values_supported"],
        issuer=asked["issuer"],
        audience=asked["audience"],
    )
    answer = {"accepted": True}
except jwt.PyJWTError as error:
    if isinstance(getattr(error, "__cause__", None), OSError):
        raise
    answer = {"accepted": False, "reason": type(error).__name__ + ": " + str(error)}
print(json.dumps(answer))
