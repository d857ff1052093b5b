package kv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"tidemark/internal/logging"
	"tidemark/kv/clustermap"
	"tidemark/wire"
)

const pathLogging = "/v1/logging"

// getLogging answers with this node's log levels, by component.
func (n *Node) getLogging(w http.ResponseWriter, r *http.Request) error {
	levels, err := logging.Answer(r.Context(), n.config.Logger, nil)
	if err != nil {
		return err
	}
	return writeJSON(w, levels)
}

// putLogging changes this node's log levels.
func (n *Node) putLogging(ctx context.Context, body []byte) (any, error) {
	change, err := decode[wire.LogChange](body)
	if err != nil {
		return nil, err
	}
	return logging.Answer(ctx, n.config.Logger, &change)
}

// Logging returns a node's log levels by component, after applying change unless it is nil.
func (a *Admin) Logging(ctx context.Context, node string, change *wire.LogChange) (levels wire.LogLevels, err error) {
	s, err := a.Status(ctx)
	if err != nil {
		return levels, err
	}
	at := slices.IndexFunc(s.Nodes, func(x NodeStatus) bool { return x.ID == node })
	if at < 0 {
		return levels, fmt.Errorf("%w: node %q; kv status lists them", clustermap.ErrNoMember, node)
	}
	x := s.Nodes[at]
	if x.State == unreachable {
		return levels, fmt.Errorf("%w of the name %s at %s: %s", ErrSilent, node, x.Admin, x.Detail)
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	if change == nil {
		err = a.remote.Call(ctx, x.Admin, http.MethodGet, pathLogging, nil, &levels)
	} else {
		err = a.remote.Call(ctx, x.Admin, http.MethodPut, pathLogging, change, &levels)
	}
	if errors.As(err, new(*url.Error)) {
		return levels, fmt.Errorf("%w of the name %s: %w", ErrSilent, node, err)
	}
	return levels, err
}
