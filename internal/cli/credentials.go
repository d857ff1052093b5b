package cli

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"tidemark/client"
	"tidemark/internal/localcluster"
	"tidemark/internal/tlsconf"
)

// Secrets are read from files, standard input, a terminal or these variables, never from the command line, which
// other users of the machine can read.
const (
	tokenEnv    = "TIDEMARK_TOKEN"
	passwordEnv = "TIDEMARK_PASSWORD"
	// maxSecret limits the size of a secret's file, in bytes.
	maxSecret = 4 << 10
)

// credentialFlags are the credentials of a client command, and the CAs of the servers that it trusts.
type credentialFlags struct {
	files                         tlsconf.Files
	certs                         string
	user, passwordFile, tokenFile string
	// secret caches the secret read from standard input or the terminal: it can be read only once, while a command such
	// as top creates many clients.
	secret string
}

func (c *credentialFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&c.files.CA, "tls-ca", "", "PEM `FILE` with the CAs of the servers; addresses without a scheme are "+
		"then https")
	fl.StringVar(&c.files.Cert, "tls-cert", "", "PEM `FILE` with a certificate to present; see tidemark cert user")
	fl.StringVar(&c.files.Key, "tls-key", "", "PEM `FILE` with its key")
	fl.StringVar(&c.certs, "certs-dir", "", "`FOLDER` operator that tidemark cert cluster has made, instead of "+
		"--tls-ca, --tls-cert and --tls-key")
	fl.StringVar(&c.user, "user", "", "`NAME` of the user; the password is asked for on a terminal")
	fl.StringVar(&c.passwordFile, "password-file", "",
		"`FILE` with the user's password, - for standard input (or "+passwordEnv+")")
	fl.StringVar(&c.tokenFile, "token-file", "", "`FILE` with a token instead of user and password, - for standard "+
		"input (or "+tokenEnv+")")
}

// options returns the client options for the credentials. With the manifest of a running `tidemark up`, it uses its
// certificate.
func (c *credentialFlags) options(ctx context.Context, s Streams, m *localcluster.Manifest) (client.Options, error) {
	o := client.Options{User: c.user}
	if err := c.folder(); err != nil {
		return o, err
	}
	source, err := tlsconf.Open(c.files, nil)
	if err != nil {
		return o, usageError{err}
	}
	if o.TLS = source.UserClient(); o.TLS == nil && m != nil {
		if o.TLS, err = m.UserTLS(); err != nil {
			return o, usageError{err}
		}
	}
	err = c.secrets(ctx, s, &o)
	return o, err
}

// secrets reads the token, or the user's password, from a file, the environment, or the terminal.
func (c *credentialFlags) secrets(ctx context.Context, s Streams, o *client.Options) (err error) {
	switch {
	case c.tokenFile != "" && c.user != "":
		return usage("--token-file and --user: a token already identifies its user; give one of them")
	case c.tokenFile != "":
		o.Token, err = c.read(s, c.tokenFile)
	case c.user != "" && c.passwordFile != "":
		o.Password, err = c.read(s, c.passwordFile)
	case c.user != "":
		if o.Password = os.Getenv(passwordEnv); o.Password == "" {
			o.Password, err = c.once(func() (string, error) {
				return askSecret(ctx, s, "password of "+c.user, "--password-file FILE (- for standard input), or "+passwordEnv)
			})
		}
	case c.passwordFile != "":
		return usage("--password-file needs --user")
	default:
		o.Token = strings.TrimSpace(os.Getenv(tokenEnv))
	}
	return err
}

// read reads a secret: from a file at each call, from standard input only once.
func (c *credentialFlags) read(s Streams, path string) (string, error) {
	if path != standard {
		return readSecret(s, path)
	}
	return c.once(func() (string, error) { return readSecret(s, path) })
}

// once returns the secret that the first call of read has returned.
func (c *credentialFlags) once(read func() (string, error)) (secret string, err error) {
	if c.secret == "" { // "" is not a secret
		c.secret, err = read()
	}
	return c.secret, err
}

// folder sets the files of --certs-dir.
func (c *credentialFlags) folder() error {
	switch {
	case c.certs == "":
		return nil
	case !c.files.Empty():
		return usage("--certs-dir replaces --tls-ca, --tls-cert and --tls-key: give it or them")
	}
	c.files, c.certs = certsOf(c.certs, tlsconf.Admin), ""
	return nil
}

// readSecret reads a secret from a file, or from standard input (-).
func readSecret(s Streams, path string) (string, error) {
	if path == standard {
		return secretLine(s.In)
	}
	return secretFile(path)
}

// secretFile reads a secret from a file.
func secretFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", usage("password or token: %v", err)
	}
	defer f.Close()
	secret, err := secretLine(f)
	if err != nil {
		return "", usage("%s: %w", path, err)
	}
	return secret, nil
}

// secretLine reads a secret without its line end.
func secretLine(in io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(in, maxSecret+1))
	if err != nil {
		return "", usage("password or token: %w", err)
	}
	text := strings.TrimRight(string(b), "\r\n")
	if text == "" || len(b) > maxSecret || strings.ContainsAny(text, "\r\n") {
		return "", usage("password or token: want one line of 1 to %d bytes", maxSecret)
	}
	return text, nil
}
