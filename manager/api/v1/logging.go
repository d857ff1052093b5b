package v1

// Logging holds the log levels of a node, by component.
type Logging struct {
	ID   string `json:"id"`
	Role string `json:"role"` // manager, projector or indexer
	// Level is the level of components without one of their own: trace, debug, info, warn, error or off.
	Level      string         `json:"level"`
	UntilMS    int64          `json:"until_ms,omitempty"` // Unix time when it is reset automatically; 0: never
	Components []LogComponent `json:"components"`         // by name
}

// LogComponent is a part of a node with a name of its own in the log.
type LogComponent struct {
	Name    string `json:"name"` // "manager.raft"
	Level   string `json:"level"`
	Own     bool   `json:"own"`                // the level was set for this component
	UntilMS int64  `json:"until_ms,omitempty"` // Unix time when it is reset automatically; 0: never
}

// LogChange sets the level of one component and its parts, or, without a name, of all components that have none of
// their own.
type LogChange struct {
	Component string `json:"component,omitempty"`
	// Level is trace, debug, info, warn, error or off. If it is absent, the component is reset to the level of its
	// parent, or all are reset to the levels with which the process started.
	Level string `json:"level,omitempty"`
	ForMS int64  `json:"for_ms,omitempty"` // reset automatically after so many milliseconds, at most 24 h; 0: never
}
