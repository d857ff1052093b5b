package wire

// LogLevels are the log levels of a node. GET /v1/logging of every role.
type LogLevels struct {
	Level      string         `json:"level"`              // of components without a level of their own
	UntilMS    int64          `json:"until_ms,omitempty"` // Unix time at which it is reset; 0: never
	Components []LogComponent `json:"components"`         // by name
}

// LogComponent is a named part of a node.
type LogComponent struct {
	Name    string `json:"name"` // "manager.raft"
	Level   string `json:"level"`
	Own     bool   `json:"own"` // its level was set explicitly
	UntilMS int64  `json:"until_ms,omitempty"`
}

// LogChange sets the level of one component or, if Component is empty, of all that have none of their own. PUT
// /v1/logging of every role; the answer is LogLevels.
type LogChange struct {
	Component string `json:"component,omitempty"`
	// Level is trace, debug, info, warn, error or off. If it is empty, the component is reset to the level of its
	// parent, or, if Component is empty too, all are reset to the levels at the start of the process.
	Level string `json:"level,omitempty"`
	ForMS int64  `json:"for_ms,omitempty"` // duration after which it is reset; 0: never
}
