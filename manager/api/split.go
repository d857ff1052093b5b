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

// maxRowLine is the longest row that is looked at.
const maxRowLine = 64 << 20

// Quantiles reads an index as a scan does, at one timestamp and for so long at most, and returns the leading keys that
// cut it into n parts of as many entries.
func (a *API) Quantiles(ctx context.Context, x *statecontext.Index, n int,
	within time.Duration) (partition.Cuts, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	cuts, err := a.readQuantiles(ctx, x, n)
	if err != nil && ctx.Err() != nil {
		return cuts, rpc.Refuse(errcode.Timeout, "index %s on %s could not be read within %v to find where to cut it: say "+
			`where with "at"`, x.Definition.Name, x.Definition.Keyspace(), within)
	}
	return cuts, err
}

func (a *API) readQuantiles(ctx context.Context, x *statecontext.Index, n int) (cuts partition.Cuts, err error) {
	resp, err := a.askReady(ctx, &question{index: x, action: scanAction, body: []byte("{}"),
		again: func() (*statecontext.Index, error) { return x, nil }}, a.scanners)
	if err != nil {
		return cuts, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return cuts, rpc.ReadProblem(resp)
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
			return cuts, fmt.Errorf("reading index %s: %w", x.Definition.Name, err)
		case l.Error != nil:
			return cuts, l.Error
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
	return cuts, cutShort(ctx, err)
}
