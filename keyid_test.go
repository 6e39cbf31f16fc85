package gcpjwt_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	gcpjwt "github.com/someone1/gcp-jwt-go/v3"
	"github.com/someone1/gcp-jwt-go/v3/gcpjwttest"
	"github.com/someone1/gcp-jwt-go/v3/internal/systest"
)

// The key IDs of gcp-jwt-go v2, here made by sha1sum.
func TestKMSKeyID(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, want string }{
		{"projects/test/locations/global/keyRings/test/cryptoKeys/signer/cryptoKeyVersions/1", "0a0f48c3c8949c925b5942e5e5bb43865c37dd3e"},
		{"projects/test/locations/global/keyRings/test/cryptoKeys/signer/cryptoKeyVersions/12", "6386c9bc8807904e81bfa3cf98a67f2190e63a74"},
		{"", "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
	}
	for _, tt := range tests {
		if got := gcpjwt.KMSKeyID(tt.name); got != tt.want {
			t.Errorf("KMSKeyID(%q) = %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestKMSConfigKeyID(t *testing.T) {
	t.Parallel()
	server, client := systest.StartKMS(t)
	version := systest.Create(t, server, systest.P256)

	pinned := &gcpjwt.KMSConfig{KeyPath: version, KMSClient: client}
	if got, want := pinned.KeyID(), gcpjwt.KMSKeyID(version); got != want {
		t.Errorf("KeyID of a CryptoKeyVersion = %q, want %q", got, want)
	}

	rotating := &gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: client}
	if got := rotating.KeyID(); got != "" {
		t.Errorf("KeyID of a CryptoKey before any signature = %q, want none", got)
	}
	systest.KMSKeyfunc(t, t.Context(), client, systest.CryptoKeyOf(version))
	if got := rotating.KeyID(); got != "" {
		t.Errorf("KeyID of a CryptoKey that only verified = %q, want none", got)
	}
	ctx := gcpjwt.NewKMSContext(t.Context(), rotating)
	systest.Sign(t, ctx, gcpjwt.SigningMethodKMSES256, nil)
	if got, want := rotating.KeyID(), gcpjwt.KMSKeyID(version); got != want {
		t.Errorf("KeyID of a CryptoKey after a signature = %q, want %q", got, want)
	}
	if got, want := (&gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: client}).KeyID(), rotating.KeyID(); got != want {
		t.Errorf("KeyID of a second configuration of the CryptoKey = %q, want %q", got, want)
	}
	if _, otherClient := systest.StartKMS(t); (&gcpjwt.KMSConfig{KeyPath: systest.CryptoKeyOf(version), KMSClient: otherClient}).KeyID() != "" {
		t.Error("KeyID of a CryptoKey of that name on another server isn't empty")
	}

	// The version that signed last, not the last that was tried.
	second, err := server.CreateVersion(systest.CryptoKeyOf(version))
	if err != nil {
		t.Fatal(err)
	}
	server.SetState(version, systest.Disabled)
	systest.Sign(t, ctx, gcpjwt.SigningMethodKMSES256, nil)
	if got, want := rotating.KeyID(), gcpjwt.KMSKeyID(second); got != want {
		t.Errorf("KeyID after version 1 was disabled = %q, want %q", got, want)
	}
	server.SetState(second, systest.Disabled)
	if text, err := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSES256)); err == nil {
		t.Errorf("SignedString with no ENABLED version = %q, want an error", text)
	}
	if got, want := rotating.KeyID(), gcpjwt.KMSKeyID(second); got != want {
		t.Errorf("KeyID after a failed signature = %q, want %q", got, want)
	}

	// The kid that token.SignedString needs is KeyID's.
	server.SetState(second, systest.Enabled)
	token := jwt.New(gcpjwt.SigningMethodKMSES256)
	token.Header["kid"] = kmsPinnedTo(second, rotating).KeyID()
	text, err := token.SignedString(gcpjwt.NewKMSContext(t.Context(), kmsPinnedTo(second, rotating)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jwt.Parse(text, systest.KMSKeyfunc(t, t.Context(), client, second)); err != nil {
		t.Errorf("jwt.Parse of a token with KeyID as its kid: %v", err)
	}
}

func kmsPinnedTo(version string, config *gcpjwt.KMSConfig) *gcpjwt.KMSConfig {
	return &gcpjwt.KMSConfig{KeyPath: version, KMSClient: config.KMSClient}
}

// R01: a KeyPath that names nothing is refused with a hint, before any call.
func TestKMSMalformedKeyPath(t *testing.T) {
	t.Parallel()
	const (
		key     = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
		version = key + "/cryptoKeyVersions/1"
	)
	long := strings.Repeat("x", 64)
	tests := []struct{ path, hint string }{
		{"", "empty"},
		{" ", "projects/ is missing"},
		{"k", "projects/ is missing"},
		{"name=" + version, `remove the leading "name="`}, // as v2's documentation had it
		{"gcpkms://" + version, "remove the scheme"},
		{"gcp-kms://" + version, "remove the scheme"},
		{"https://cloudkms.googleapis.com/v1/" + version, "remove the scheme"},
		{"//cloudkms.googleapis.com/" + version, "leading slash"},
		{"/" + version, "leading slash"},
		{"cloudkms.googleapis.com/" + version, "projects/ is missing"},
		{"Projects/p/locations/global/keyRings/r/cryptoKeys/k", "projects/ is missing"},
		{"projects", "the ID after projects/ is missing"},
		{"projects/", "the ID after projects/ is missing"},
		{"projects/p", "locations/ is missing"},
		{"projects/p/locations/global", "keyRings/ is missing"},
		{"projects/p/locations/global/keyrings/r/cryptoKeys/k", "keyRings/ is missing"},
		{"projects/p/locations/global/keyRings/r", "cryptoKeys/ is missing"},
		{"projects/p/locations/global/keyRings/r/cryptoKeys", "the ID after cryptoKeys/ is missing"},
		{"projects/p/locations/global/keyRings/r/cryptoKeys/", "the ID after cryptoKeys/ is missing"},
		{"projects/p/locations/global/keyRings//cryptoKeys/k", "the ID after keyRings/ is missing"},
		{"projects//locations/global/keyRings/r/cryptoKeys/k", "the ID after projects/ is missing"},
		{key + "/", "cryptoKeyVersions/ is missing"},
		{key + "/versions/1", "cryptoKeyVersions/ is missing"},
		{key + "/cryptoKeyVersions", "the ID after cryptoKeyVersions/ is missing"},
		{key + "/cryptoKeyVersions/", "the ID after cryptoKeyVersions/ is missing"},
		{version + "/", "goes on after the version"},
		{version + "/publicKey", "goes on after the version"},
		{version + ":asymmetricSign", "is not an ID of cryptoKeyVersions"},
		{key + "/cryptoKeyVersions/0", `"0" is not a version number`},
		{key + "/cryptoKeyVersions/01", `"01" is not a version number`},
		{key + "/cryptoKeyVersions/abc", `"abc" is not a version number`},
		{key + "/cryptoKeyVersions/latest", `"latest" is not a version number`},
		{key + "/cryptoKeyVersions/-1", `"-1" is not a version number`},
		{key + "/cryptoKeyVersions/+1", "is not an ID of cryptoKeyVersions"},
		{key + "/cryptoKeyVersions/1_0", `"1_0" is not a version number`},
		{key + "/cryptoKeyVersions/99999999999999999999", "is not a version number"},
		{key + "/cryptoKeyVersions/*", "is not an ID of cryptoKeyVersions"},
		{"projects/*/locations/*/keyRings/*/cryptoKeys/*", "is not an ID of projects"},
		{version + "\n", "is not an ID of cryptoKeyVersions"},
		{key + "\n", "is not an ID of cryptoKeys"},
		{"projects/p\n/locations/global/keyRings/r/cryptoKeys/k", "is not an ID of projects"},
		{"projects/p/locations/global/keyRings/r r/cryptoKeys/k", "is not an ID of keyRings"},
		{"projects/p/locations/global/keyRings/r/cryptoKeys/k%2F", "is not an ID of cryptoKeys"},
		{"projects/p/locations/global/keyRings/r/cryptoKeys/ключ", "is not an ID of cryptoKeys"},
		{"projects/p/locations/global/keyRings/r/cryptoKeys/k\x00", "is not an ID of cryptoKeys"},
		{"projects/p/locations/global/keyRings/r/cryptoKeys/..", "is not an ID of cryptoKeys"},
		{"projects/p/locations/global/keyRings/r/cryptoKeys/" + long, "is not an ID of cryptoKeys"},
		{"projects/p/locations/global/keyRings/" + long + "/cryptoKeys/k", "is not an ID of keyRings"},
		{"projects/" + strings.Repeat("x", 129) + "/locations/global/keyRings/r/cryptoKeys/k", "is not an ID of projects"},
		{strings.Repeat("x", 1<<20), "projects/ is missing"},
	}
	server := gcpjwttest.NewKMS(t)
	client := server.Client()
	for i, tt := range tests {
		t.Run(fmt.Sprintf("R01/%d", i), func(t *testing.T) {
			config := &gcpjwt.KMSConfig{KeyPath: tt.path, KMSClient: client}
			ctx := gcpjwt.NewKMSContext(t.Context(), config)
			_, signErr := gcpjwt.SigningMethodKMSES256.Sign("header.payload", ctx)
			_, textErr := gcpjwt.SignedString(ctx, jwt.New(gcpjwt.SigningMethodKMSHS256))
			_, keyfuncErr := gcpjwt.KMSVerifyKeyfunc(t.Context(), config)
			for call, err := range map[string]error{"Sign": signErr, "SignedString": textErr, "KMSVerifyKeyfunc": keyfuncErr} {
				if !errors.Is(err, gcpjwt.ErrInvalidConfig) || errors.Is(err, gcpjwt.ErrKeysUnavailable) {
					t.Errorf("%s: %v, want ErrInvalidConfig alone", call, err)
					continue
				}
				if !strings.Contains(err.Error(), tt.hint) {
					t.Errorf("%s: the error is %q, want it to say %q", call, err, tt.hint)
				}
				if message := err.Error(); len(message) > 500 || strings.ContainsAny(message, "\n\x00") {
					t.Errorf("%s: the error isn't one short line: %q", call, message)
				}
			}
			if got := config.KeyID(); got != "" {
				t.Errorf("KeyID = %q, want none", got)
			}
		})
	}
	if got := server.Calls(""); got != 0 {
		t.Errorf("R01: %d calls, want 0", got)
	}
}

// The forms that are right, of which the server knows none.
func TestKMSWellFormedKeyPath(t *testing.T) {
	t.Parallel()
	client := gcpjwttest.NewKMS(t).Client()
	longest := strings.Repeat("x", 63)
	for _, path := range []string{
		"projects/p/locations/global/keyRings/r/cryptoKeys/k",
		"projects/p/locations/global/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1",
		"projects/p/locations/global/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1234567890",
		"projects/123/locations/europe-west6/keyRings/_/cryptoKeys/-",
		"projects/" + longest + "/locations/" + longest + "/keyRings/" + longest + "/cryptoKeys/" + longest,
		"projects/example.com:p/locations/global/keyRings/r/cryptoKeys/k", // of a domain
	} {
		config := &gcpjwt.KMSConfig{KeyPath: path, KMSClient: client}
		_, err := gcpjwt.SignedString(gcpjwt.NewKMSContext(t.Context(), config), jwt.New(gcpjwt.SigningMethodKMSES256))
		if err == nil || errors.Is(err, gcpjwt.ErrInvalidConfig) {
			t.Errorf("SignedString with %q: %v, want Cloud KMS's own refusal", path, err)
		}
		if pinned := strings.Contains(path, "cryptoKeyVersions"); pinned != (config.KeyID() != "") {
			t.Errorf("KeyID of %q = %q", path, config.KeyID())
		}
	}
}
