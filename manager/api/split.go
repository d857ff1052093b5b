package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/partition"
	"tidemark/statecontext"
)

const (
	// quantilePatience is how long an index may be read for where to cut it: a statement lasts WriteTimeout at most.
	quantilePatience = WriteTimeout - 3*time.Second
	// maxRowLine is the longest row that is looked at.
	maxRowLine = 64 << 20
)

// Quantiles reads an index as a scan does, at one timestamp, and returns the leading keys that cut it into n parts of
// as many entries.
func (a *API) Quantiles(ctx context.Context, x *statecontext.Index, n int) ([]json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, quantilePatience)
	defer cancel()
	values, err := a.readQuantiles(ctx, x, n)
	if err != nil && ctx.Err() != nil {
		return nil, rpc.Refuse(errcode.Timeout, "index %s on %s could not be read within %v to find where to cut it: say "+
			`where with "at"`, x.Definition.Name, x.Definition.Keyspace(), quantilePatience)
	}
	return values, err
}

func (a *API) readQuantiles(ctx context.Context, x *statecontext.Index, n int) ([]json.RawMessage, error) {
	resp, err := a.askReady(ctx, &question{index: x, action: scanAction, body: []byte("{}"),
		again: func() (*statecontext.Index, error) { return x, nil }}, a.scanners)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, rpc.ReadProblem(resp)
	}
	var samples partition.Samples
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, pieceOfAnswer), maxRowLine)
	for lines.Scan() {
		line := lines.Bytes()
		row := bytes.HasPrefix(line, []byte(`{"key":`))
		if row && !samples.Next() {
			continue
		}
		var l struct {
			client.Row
			End   bool         `json:"end"`
			Error *rpc.Problem `json:"error"`
		}
		switch err := json.Unmarshal(line, &l); {
		case err != nil:
			return nil, fmt.Errorf("reading index %s: %w", x.Definition.Name, err)
		case l.Error != nil:
			return nil, l.Error
		case l.End:
			return samples.Quantiles(n, x.Definition.Desc()[0])
		case row && len(l.Key) > 0:
			samples.Keep(l.Key[0])
		}
	}
	err = lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return nil, cutShort(ctx, err)
}
