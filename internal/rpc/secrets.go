package rpc

import "regexp"

// secrets matches the secrets of tokens (statecontext.TokenPrefix).
var secrets = regexp.MustCompile(`tmt_[^\s"]*`)

// WithoutSecrets masks token secrets in a text for logs and spans, such as a path in which a user gave a secret for
// an id.
func WithoutSecrets(text string) string { return secrets.ReplaceAllString(text, "tmt_…") }
