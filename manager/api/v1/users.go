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
	Role     string `json:"role,omitempty"`     // metrics, read, ddl or admin; required for a new user
	Password string `json:"password,omitempty"` // required for a new user
	New      bool   `json:"new,omitempty"`      // fail if the user exists; otherwise fail if it does not
}

// TokenInfo is a token without its secret.
type TokenInfo struct {
	ID        string `json:"id"`
	User      string `json:"user"`
	Role      string `json:"role"`
	Note      string `json:"note,omitempty"`
	CreatedMS int64  `json:"created_ms"`
	ExpiresMS int64  `json:"expires_ms,omitempty"` // absent: never
}

// TokenList is the answer of GET /v1/tokens.
type TokenList struct {
	Tokens []TokenInfo `json:"tokens"`
}

// TokenRequest creates a token. The caller generates the secret (tmt_ and 32 random bytes in base64url), so that the
// request can be repeated safely and no answer contains it.
type TokenRequest struct {
	User      string `json:"user"`
	Role      string `json:"role,omitempty"` // absent: the user's own
	Secret    string `json:"secret"`
	Note      string `json:"note,omitempty"`
	ExpiresMS int64  `json:"expires_ms,omitempty"` // unix milliseconds; absent: never
}

// Values of WhoAmI.By.
const (
	ByNothing     = "nothing" // the cluster has no users
	ByPassword    = "password"
	ByToken       = "token"
	BySession     = "session" // of the console
	ByCertificate = "certificate"
)

// WhoAmI is the caller's identity as authenticated by the cluster.
type WhoAmI struct {
	Name string `json:"name"`
	Role string `json:"role"` // metrics, read, ddl or admin
	By   string `json:"by"`   // nothing, password, token, session or certificate
	// Users is set if requests without credentials are refused.
	Users  bool  `json:"users"`
	EndsMS int64 `json:"ends_ms,omitempty"` // expiry of the token or session, unix milliseconds; absent: never
}
