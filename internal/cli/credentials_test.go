package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSecretFromStandardInputIsReadOnce checks that a secret from standard input is used for all calls of a command, as
// in top and --watch, and that a file is read for each of them.
func TestSecretFromStandardInputIsReadOnce(t *testing.T) {
	for name, flags := range map[string]*credentialFlags{"a token": {tokenFile: "-"},
		"a password": {user: "ann", passwordFile: "-"}} {
		s := Streams{In: strings.NewReader("secret\n")}
		for call := range 3 {
			o, err := flags.options(t.Context(), s, nil)
			if err != nil || o.Token+o.Password != "secret" {
				t.Errorf("%s, call %d: %q, %v", name, call+1, o.Token+o.Password, err)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "token")
	flags := &credentialFlags{tokenFile: file}
	for _, token := range []string{"old", "new"} {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if o, err := flags.options(t.Context(), Streams{}, nil); err != nil || o.Token != token {
			t.Errorf("read %q from a file with %q, %v", o.Token, token, err)
		}
	}
}
