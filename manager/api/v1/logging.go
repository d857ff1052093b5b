package v1

// Logging is how much a node logs, by component.
type Logging struct {
	ID   string `json:"id"`
	Role string `json:"role"` // manager, projector or indexer
	// Level is that of components that have none of their own: trace, debug, info, warn, error or off.
	Level      string         `json:"level"`
	UntilMS    int64          `json:"until_ms,omitempty"` // Unix time when it goes back by itself; 0: never
	Components []LogComponent `json:"components"`         // by name
}

// LogComponent is a part of a node that has a name of its own in the log.
type LogComponent struct {
	Name    string `json:"name"` // "manager.raft"
	Level   string `json:"level"`
	Own     bool   `json:"own"`                // it was set for this one
	UntilMS int64  `json:"until_ms,omitempty"` // Unix time when it goes back by itself; 0: never
}

// LogChange sets a level: of one component and what is part of it, or without a name of all that have none of their
// own.
type LogChange struct {
	Component string `json:"component,omitempty"`
	// Level is trace, debug, info, warn, error or off. Without it the component goes back to that of what it is part of,
	// and all go back to what the process began with.
	Level string `json:"level,omitempty"`
	ForMS int64  `json:"for_ms,omitempty"` // goes back by itself after so many milliseconds, at most 24 h; 0: never
}
