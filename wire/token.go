package wire

// TokenCheckPath is where a component asks a manager about a token that somebody shows to it.
const TokenCheckPath = "/v1/tokens:check"

// TokenCheck asks whether a token is good for reading metrics.
type TokenCheck struct {
	Token  string `json:"token"`
	Remote string `json:"remote"` // the address that shows it, by which tries are counted
}

// TokenChecked says that it is.
type TokenChecked struct {
	Principal string `json:"principal"` // whose it is
}
