package tlsconf

import (
	"net/url"
	"testing"
)

// TestBaseURL checks that the URL of an address has its host, also if the address has a zone.
func TestBaseURL(t *testing.T) {
	for given, want := range map[string]string{
		"10.0.0.1:9520": "http://10.0.0.1:9520", " m1.example:9520/ ": "http://m1.example:9520",
		"[::1]:9520": "http://[::1]:9520", "https://[::1]:9520": "https://[::1]:9520",
		"[fe80::1%eth0]:9520":          "http://[fe80::1%25eth0]:9520",
		"https://[fe80::1%eth0]:9520/": "https://[fe80::1%25eth0]:9520",
		"http://[fe80::1%25eth0]:9520": "http://[fe80::1%25eth0]:9520",
		"http://a:1/p@n%2F1":           "http://a:1/p@n%2F1", "http://[::1]:1/p@n%2F1": "http://[::1]:1/p@n%2F1",
	} {
		got := BaseURL("http", given)
		if _, err := url.Parse(got); err != nil || got != want {
			t.Errorf("%q is %q, want %q: %v", given, got, want, err)
		}
	}
}
