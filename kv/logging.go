package kv

import (
	"context"
	"fmt"
	"net/http"

	"tidemark/internal/logging"
	"tidemark/wire"
)

const pathLogging = "/v1/logging"

// getLogging answers with how much this node logs, by component.
func (n *Node) getLogging(w http.ResponseWriter, r *http.Request) error {
	levels, err := logging.Answer(r.Context(), n.config.Logger, nil)
	if err != nil {
		return err
	}
	return writeJSON(w, levels)
}

// putLogging changes how much this node logs.
func (n *Node) putLogging(ctx context.Context, body []byte) (any, error) {
	change, err := decode[wire.LogChange](body)
	if err != nil {
		return nil, err
	}
	return logging.Answer(ctx, n.config.Logger, &change)
}

// Logging returns how much a node logs, by component, after a change if there is one.
func (a *Admin) Logging(ctx context.Context, node string, change *wire.LogChange) (levels wire.LogLevels, err error) {
	s, err := a.Status(ctx)
	if err != nil {
		return levels, err
	}
	for _, x := range s.Nodes {
		switch {
		case x.ID != node:
		case change == nil:
			return levels, a.remote.Call(ctx, x.Admin, http.MethodGet, pathLogging, nil, &levels)
		default:
			return levels, a.remote.Call(ctx, x.Admin, http.MethodPut, pathLogging, change, &levels)
		}
	}
	return levels, fmt.Errorf("%w: no KV node is called %q; kv status lists them", ErrRefused, node)
}
