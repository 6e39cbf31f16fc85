// Verifies one token with the npm package jose, by the issuer's name.
import { readFileSync } from 'node:fs'
import { createRemoteJWKSet, errors, jwtVerify } from 'jose'

const { issuer, audience, token } = JSON.parse(readFileSync(0, 'utf8'))
const response = await fetch(issuer + '/.well-known/openid-configuration')
const document = await response.json()
if (document.issuer !== issuer) throw new Error('a foreign issuer: ' + document.issuer)

let answer = { accepted: true }
try {
  await jwtVerify(token, createRemoteJWKSet(new URL(document.jwks_uri)), {
    issuer,
    audience,
    algorithms: document.id_token_signing_alg_values_supported,
  })
} catch (e) {
  if (!(e instanceof errors.JOSEError)) throw e
  answer = { accepted: false, reason: e.code + ': ' + e.message }
}
console.log(JSON.stringify(answer))
