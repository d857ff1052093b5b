package wire

// LogLevels say how much a node logs. GET /v1/logging of every role.
type LogLevels struct {
	Level      string         `json:"level"`              // of components that have none of their own
	UntilMS    int64          `json:"until_ms,omitempty"` // Unix time when it goes back by itself; 0: never
	Components []LogComponent `json:"components"`         // by name
}

// LogComponent is a part of a node with a name of its own.
type LogComponent struct {
	Name    string `json:"name"` // "manager.raft"
	Level   string `json:"level"`
	Own     bool   `json:"own"` // it was set for this one
	UntilMS int64  `json:"until_ms,omitempty"`
}

// LogChange sets a level: of one component, or without a name of all that have none of their own. PUT /v1/logging of
// every role; the answer is LogLevels.
type LogChange struct {
	Component string `json:"component,omitempty"`
	// Level is trace, debug, info, warn, error or off; without it the component goes back to that of what it is part of,
	// and all go back to what the process began with.
	Level string `json:"level,omitempty"`
	ForMS int64  `json:"for_ms,omitempty"` // until it goes back by itself; 0: never
}
