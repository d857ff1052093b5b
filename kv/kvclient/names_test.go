package kvclient

import "testing"

// The name that a certificate must have.
func TestServerName(t *testing.T) {
	for addr, want := range map[string]string{"kv1:1": "kv1", "[::1]:1": "::1", "[fe80::1%lo]:1": "fe80::1"} {
		if name, err := serverName(addr); name != want || err != nil {
			t.Errorf("%s: %q %v", addr, name, err)
		}
	}
}
