package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/projector"
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

// TestSecretFilesHaveOneRule checks that files of KV passwords are read by the rule of all secrets, and that errors
// name the file.
func TestSecretFilesHaveOneRule(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	read := map[string]func() (string, error){
		"a token":       func() (string, error) { return readSecret(Streams{}, file) },
		"a KV password": func() (string, error) { return secretFile(file) },
		"a projector's password": func() (string, error) {
			c := projector.Config{User: "u"}
			if err := kvUser(&c, file, false); err != nil {
				return "", err
			}
			return c.ReadPassword()
		},
	}
	longest := strings.Repeat("x", maxSecret)
	for content, want := range map[string]string{"secret": "secret", "secret\r\n": "secret", " a b ": " a b ",
		longest: longest, "": "", "\n": "", "two\nlines": "", longest + "x": ""} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		for what, read := range read {
			secret, err := read()
			if secret != want || (err == nil) != (want != "") {
				t.Errorf("%s of %.20q (%d bytes): %.20q, %v", what, content, len(content), secret, err)
			}
			if err != nil && (exitCode(err) != errcode.ExitUsage || !strings.Contains(err.Error(), file)) {
				t.Errorf("%s of %.20q: exit code %d, %v", what, content, exitCode(err), err)
			}
		}
	}
}
