package gcpjwt

import (
	"testing"

	kms "cloud.google.com/go/kms/apiv1"
)

// A context remembers the CryptoKeyVersion that its configuration led to. A CryptoKey is looked
// up each time, so that it stays in use for others.
func TestContextKey(t *testing.T) {
	t.Parallel()
	const cryptoKey = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
	for path, remembered := range map[string]bool{
		cryptoKey + "/cryptoKeyVersions/1": true,
		cryptoKey:                          false,
	} {
		config := &KMSConfig{KeyPath: path, KMSClient: new(kms.KeyManagementClient)}
		ctx := NewKMSContext(t.Context(), config)
		first, err := contextKey(ctx)
		if err != nil {
			t.Fatal(err)
		}
		second, err := contextKey(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got := first == second; got != remembered {
			t.Errorf("%s: remembered: %t, want %t", path, got, remembered)
		}
		if first.pinned != second.pinned || first.rotating != second.rotating {
			t.Errorf("%s: two calls lead to two keys", path)
		}
	}
}
