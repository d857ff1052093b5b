package v1

// UserInfo is a user of the cluster.
type UserInfo struct {
	Name        string `json:"name"`
	Role        string `json:"role"` // metrics, read, ddl or admin
	ModifiedCAS uint64 `json:"modified_cas"`
}

// UserList is the answer of GET /v1/users.
type UserList struct {
	Users []UserInfo `json:"users"`
}

// UserRequest adds or changes a user.
type UserRequest struct {
	Role     string `json:"role,omitempty"`     // metrics, read, ddl or admin; of a new user needed
	Password string `json:"password,omitempty"` // of a new user needed
	New      bool   `json:"new,omitempty"`      // refuse when there is such a user; else refuse when there is none
}

// TokenInfo is a token without its secret.
type TokenInfo struct {
	ID        string `json:"id"`
	User      string `json:"user"`
	Role      string `json:"role"`
	Note      string `json:"note,omitempty"`
	CreatedMS int64  `json:"created_ms"`
	ExpiresMS int64  `json:"expires_ms,omitempty"` // never when absent
}

// TokenList is the answer of GET /v1/tokens.
type TokenList struct {
	Tokens []TokenInfo `json:"tokens"`
}

// TokenRequest makes a token. The caller makes the secret (tmt_ and 32 random bytes in base64url), so that sending the
// request again is safe and no answer carries it.
type TokenRequest struct {
	User      string `json:"user"`
	Role      string `json:"role,omitempty"` // the user's own when absent
	Secret    string `json:"secret"`
	Note      string `json:"note,omitempty"`
	ExpiresMS int64  `json:"expires_ms,omitempty"` // unix milliseconds; never when absent
}

// How somebody has shown who he is.
const (
	ByNothing     = "nothing" // the cluster has no users
	ByPassword    = "password"
	ByToken       = "token"
	BySession     = "session" // of the console
	ByCertificate = "certificate"
)

// WhoAmI is as whom the cluster knows a caller.
type WhoAmI struct {
	Name string `json:"name"`
	Role string `json:"role"` // metrics, read, ddl or admin
	By   string `json:"by"`   // nothing, password, token, session or certificate
	// Users tells that requests without credentials are refused.
	Users  bool  `json:"users"`
	EndsMS int64 `json:"ends_ms,omitempty"` // of the token or session, unix milliseconds; never when absent
}
