package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"tidemark/statecontext"
)

// RestoreReply is the answer of POST /v1/restore.
type RestoreReply struct {
	// from which on the restored state counts; of a dry run, the present one
	CAS      uint64                   `json:"cas"`
	Epoch    uint64                   `json:"epoch"` // rises with every restore
	DryRun   bool                     `json:"dry_run,omitempty"`
	Replayed bool                     `json:"replayed,omitempty"` // it was done before, under the same Idempotency-Key
	Backup   statecontext.BackupInfo  `json:"backup"`
	Indexes  statecontext.RestorePlan `json:"indexes"`
}

// FormatReply is the answer of POST /v1/cluster:finalize-upgrade.
type FormatReply struct {
	FormatLevel uint64 `json:"format_level"`
}

// LimitsChange is the body of PATCH /v1/limits: limits that are left out stay as they are, 0 is the default.
type LimitsChange struct {
	Buckets          *uint32 `json:"buckets,omitempty"`
	Indexes          *uint32 `json:"indexes,omitempty"`
	IndexesPerBucket *uint32 `json:"indexes_per_bucket,omitempty"`
	KeyExpressions   *uint32 `json:"key_expressions,omitempty"`
	NameLength       *uint32 `json:"name_length,omitempty"`
	StatementLength  *uint32 `json:"statement_length,omitempty"`
	LedgerEntries    *uint32 `json:"ledger_entries,omitempty"`
	LedgerMaxAgeMS   *int64  `json:"ledger_max_age_ms,omitempty"`
	LedgerMinAgeMS   *int64  `json:"ledger_min_age_ms,omitempty"`
	TransferRate     *int64  `json:"transfer_rate,omitempty"` // bytes a second that each indexer sends of copies' files
}

// Apply returns the limits with the change.
func (c *LimitsChange) Apply(l statecontext.Limits) statecontext.Limits {
	set(&l.Buckets, c.Buckets)
	set(&l.Indexes, c.Indexes)
	set(&l.IndexesPerBucket, c.IndexesPerBucket)
	set(&l.KeyExpressions, c.KeyExpressions)
	set(&l.NameLength, c.NameLength)
	set(&l.StatementLength, c.StatementLength)
	set(&l.LedgerEntries, c.LedgerEntries)
	set(&l.LedgerMaxAgeMS, c.LedgerMaxAgeMS)
	set(&l.LedgerMinAgeMS, c.LedgerMinAgeMS)
	set(&l.TransferRate, c.TransferRate)
	return l.WithDefaults()
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// Backup gets a backup of the StateContext and checks it; one that was cut is asked for again.
func (c *Client) Backup(ctx context.Context) (data []byte, err error) {
	err = c.retry(ctx, question{op: http.MethodGet, of: "/v1/backup"}, 0, func(ctx context.Context, server string) error {
		answer, err := c.send(ctx, http.MethodGet, server+"/v1/backup", http.Header{}, nil)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if data, err = io.ReadAll(io.LimitReader(answer.Body, statecontext.MaxBackupBytes+1)); err != nil {
			return err
		}
		if _, err = statecontext.ReadBackup(data); err != nil {
			return fmt.Errorf("%w: %w", ErrAnswer, err)
		}
		return nil
	})
	return data, err
}

// Restore restores a backup file that is held in data. mode is "in-place" or "new-cluster".
func (c *Client) Restore(ctx context.Context, data []byte, mode string, dryRun bool) (RestoreReply, error) {
	var reply RestoreReply
	header := http.Header{}
	header.Set("Idempotency-Key", newKey())
	header.Set("Content-Type", "application/octet-stream")
	path := "/v1/restore?mode=" + url.QueryEscape(mode) + "&dry_run=" + strconv.FormatBool(dryRun)
	return reply, c.retry(ctx, question{op: http.MethodPost, of: path}, 0, func(ctx context.Context, server string) error {
		answer, err := c.send(ctx, http.MethodPost, server+path, header, data)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		return json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&reply)
	})
}

// FinalizeUpgrade raises the cluster's format level to the newest one that its managers know.
func (c *Client) FinalizeUpgrade(ctx context.Context) (FormatReply, error) {
	var reply FormatReply
	return reply, c.call(ctx, http.MethodPost, "/v1/cluster:finalize-upgrade", nil, nil, &reply)
}

// Limits returns the limits in force.
func (c *Client) Limits(ctx context.Context) (statecontext.Limits, error) {
	var l statecontext.Limits
	return l, c.call(ctx, http.MethodGet, "/v1/limits", nil, nil, &l)
}

// SetLimits changes the limits that are named, by their JSON names; 0 is the default.
func (c *Client) SetLimits(ctx context.Context, change map[string]int64) (statecontext.Limits, error) {
	var l statecontext.Limits
	return l, c.call(ctx, http.MethodPatch, "/v1/limits", nil, change, &l)
}

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

// Logging returns how much a manager, projector or indexer logs, after a change if there is one. The role may be empty
// unless nodes of several roles have the name.
func (c *Client) Logging(ctx context.Context, id, role string, change *LogChange) (Logging, error) {
	path := "/v1/cluster/nodes/" + url.PathEscape(id) + "/logging"
	if role != "" {
		path += "?role=" + url.QueryEscape(role)
	}
	var l Logging
	if change == nil {
		return l, c.call(ctx, http.MethodGet, path, nil, nil, &l)
	}
	return l, c.call(ctx, http.MethodPut, path, nil, change, &l)
}
