package n1ql

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"testing"
)

// request is one evaluation.
type request struct {
	Expr   string          `json:"expr"`
	Doc    json.RawMessage `json:"doc"`
	Xattrs json.RawMessage `json:"xattrs,omitempty"`
	Here   string          `json:"-"` // the expression evaluated here, if it differs from Expr
	Desc   []bool          `json:"-"` // the directions of the parts of a flattened key
}

// reply is an evaluator's answer.
type reply struct {
	Value    json.RawMessage `json:"value,omitempty"`
	Missing  bool            `json:"missing,omitempty"`
	Elements []reply         `json:"elements,omitempty"` // of an array key
	Error    string          `json:"error,omitempty"`
	Parse    string          `json:"parse,omitempty"`
}

func (r reply) String() string {
	switch {
	case r.Parse != "":
		return "refused: " + r.Parse
	case r.Error != "":
		return "error: " + r.Error
	case r.Missing:
		return "MISSING"
	case r.Elements != nil:
		return fmt.Sprint("elements ", r.Elements)
	}
	return string(r.Value)
}

// oracle is the other evaluator's process.
type oracle struct {
	in  io.WriteCloser
	out *bufio.Scanner
}

// maxReply bounds one line of an answer, in bytes.
const maxReply = 256 << 20

// startOracle starts the program and ends it with the test.
func startOracle(t *testing.T, path string) *oracle {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(make([]byte, 1<<20), maxReply)
	return &oracle{in, lines}
}

// ask evaluates a batch. The requests are written while the answers are read, so that neither pipe fills up.
func (o *oracle) ask(batch []request) ([]reply, error) {
	written := make(chan error, 1)
	go func() {
		w := bufio.NewWriter(o.in)
		enc := json.NewEncoder(w)
		for _, r := range batch {
			if err := enc.Encode(r); err != nil {
				written <- err
				return
			}
		}
		written <- w.Flush()
	}()
	replies := make([]reply, len(batch))
	for i := range replies {
		if !o.out.Scan() {
			if err := o.out.Err(); err != nil {
				return nil, err
			}
			return nil, io.ErrUnexpectedEOF
		}
		if err := json.Unmarshal(o.out.Bytes(), &replies[i]); err != nil {
			return nil, err
		}
	}
	return replies, <-written
}
