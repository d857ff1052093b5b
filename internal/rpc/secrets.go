package rpc

import "regexp"

// secrets finds those of tokens (statecontext.TokenPrefix).
var secrets = regexp.MustCompile(`tmt_[^\s"]*`)

// WithoutSecrets is a text for logs and spans, such as a path in which somebody took a token's secret for its id.
func WithoutSecrets(text string) string { return secrets.ReplaceAllString(text, "tmt_…") }
