package wire

// TokenCheckPath is where a component asks a manager to check a token that was presented to it.
const TokenCheckPath = "/v1/tokens:check"

// TokenCheck asks whether a token permits reading metrics.
type TokenCheck struct {
	Token  string `json:"token"`
	Remote string `json:"remote"` // address that presented it, by which attempts are counted
}

// TokenChecked is the answer for a valid token.
type TokenChecked struct {
	Principal string `json:"principal"` // owner of the token
}
