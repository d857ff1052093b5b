package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/statecontext"
)

// Backup returns a backup of the StateContext, and verifies it; one that was cut off is requested again.
func (c *Client) Backup(ctx context.Context) (data []byte, err error) {
	err = c.retry(ctx, operation{op: http.MethodGet, of: "/v1/backup"}, 0, func(ctx context.Context, server string) error {
		answer, err := c.send(ctx, http.MethodGet, server+"/v1/backup", http.Header{}, nil)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		data, err = rpc.ReadAnswer(answer, statecontext.MaxBackupBytes)
		switch {
		case errors.Is(err, rpc.ErrTooLarge):
			return fmt.Errorf("%w: %w", ErrAnswer, err)
		case err != nil:
			return err
		}
		if _, err = statecontext.ReadBackup(data); err != nil {
			return fmt.Errorf("%w: %w", ErrAnswer, err)
		}
		return nil
	})
	return data, err
}

// Restore restores the contents of a backup file. mode is "in-place" or "new-cluster".
func (c *Client) Restore(ctx context.Context, data []byte, mode string, dryRun bool) (v1.RestoreReply, error) {
	var reply v1.RestoreReply
	header := http.Header{}
	header.Set("Idempotency-Key", newKey())
	header.Set("Content-Type", "application/octet-stream")
	path := "/v1/restore?mode=" + url.QueryEscape(mode) + "&dry_run=" + strconv.FormatBool(dryRun)
	q := operation{op: http.MethodPost, of: path}
	return reply, c.retry(ctx, q, 0, func(ctx context.Context, server string) error {
		answer, err := c.send(ctx, http.MethodPost, server+path, header, data)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		return c.read(answer, &reply)
	})
}

// FinalizeUpgrade raises the cluster's format level to the newest one that all its managers support.
func (c *Client) FinalizeUpgrade(ctx context.Context) (v1.FormatReply, error) {
	var reply v1.FormatReply
	return reply, c.call(ctx, http.MethodPost, "/v1/cluster:finalize-upgrade", nil, nil, &reply)
}

// Limits returns the limits in force.
func (c *Client) Limits(ctx context.Context) (statecontext.Limits, error) {
	var l statecontext.Limits
	return l, c.call(ctx, http.MethodGet, "/v1/limits", nil, nil, &l)
}

// SetLimits changes the given limits, by their JSON names; 0 restores the default.
func (c *Client) SetLimits(ctx context.Context, change map[string]int64) (statecontext.Limits, error) {
	var l statecontext.Limits
	return l, c.call(ctx, http.MethodPatch, "/v1/limits", nil, change, &l)
}

// Logging returns the log settings of a manager, projector or indexer, after applying change unless it is nil. The
// role may be empty unless nodes of several roles have this name.
func (c *Client) Logging(ctx context.Context, id, role string, change *v1.LogChange) (v1.Logging, error) {
	path := "/v1/cluster/nodes/" + url.PathEscape(id) + "/logging"
	if role != "" {
		path += "?role=" + url.QueryEscape(role)
	}
	var l v1.Logging
	if change == nil {
		return l, c.call(ctx, http.MethodGet, path, nil, nil, &l)
	}
	return l, c.call(ctx, http.MethodPut, path, nil, change, &l)
}
