package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestASecretIsAskedForOnce checks that a secret from standard input is used for all calls of a command, as in top
// and --watch, and that a file is read for each of them.
func TestASecretIsAskedForOnce(t *testing.T) {
	for name, who := range map[string]*credentialFlags{"a token": {tokenFile: "-"},
		"a password": {user: "ann", passwordFile: "-"}} {
		s := Streams{In: strings.NewReader("secret\n")}
		for look := range 3 {
			o, err := who.options(t.Context(), s, nil)
			if err != nil || o.Token+o.Password != "secret" {
				t.Errorf("%s, look %d: %q, %v", name, look+1, o.Token+o.Password, err)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "token")
	who := &credentialFlags{tokenFile: file}
	for _, token := range []string{"old", "new"} {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if o, err := who.options(t.Context(), Streams{}, nil); err != nil || o.Token != token {
			t.Errorf("%q of a file that says %q, %v", o.Token, token, err)
		}
	}
}
