// Package gcpjwt signs and verifies JSON Web Tokens with keys that Google Cloud
// holds.
package gcpjwt
