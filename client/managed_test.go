package client

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"tidemark/indexer/scanport"
	"tidemark/manager/api/v1"
)

// relay is a manager that relays rows 0 to 19, with a place after each group of some rows, and dies after some rows.
type relay struct {
	piece    int
	noPlaces bool // without places
	restarts bool // it always begins anew

	mu      sync.Mutex
	kills   []int // rows of each answer before a kill; empty: never
	resumes []string
}

func (p *relay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resume, err := scanport.ParsePlace(r.Header.Get(scanport.HeaderResume))
	from := 0
	if err == nil && resume != nil {
		from, err = strconv.Atoi(string(resume))
	}
	if err != nil || r.Header.Get(scanport.HeaderPlaces) != "true" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if resume != nil && !p.restarts {
		w.Header().Set(scanport.HeaderResume, "true")
	}
	if p.restarts {
		from = 0
	}
	p.mu.Lock()
	p.resumes = append(p.resumes, string(resume))
	kill := -1
	if len(p.kills) > 0 {
		kill, p.kills = p.kills[0], p.kills[1:]
	}
	p.mu.Unlock()
	for i := from; ; i++ {
		if i-from == kill {
			_, _ = io.WriteString(w, `{"key":[`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		if i >= 20 {
			break
		}
		_, _ = fmt.Fprintf(w, `{"key":[%d],"id":"d%d"}`+"\n", i, i)
		switch {
		case (i-from+1)%p.piece != 0:
		case p.noPlaces:
			_, _ = w.Write(scanport.AppendPlace(nil, nil))
		default:
			_, _ = w.Write(scanport.AppendPlace(nil, []byte(strconv.Itoa(i+1))))
		}
		_ = http.NewResponseController(w).Flush()
	}
	_, _ = io.WriteString(w, `{"end":true,"rows":20,"timestamp":{"id":"1.0.1.2","hash":"2"},"explain":{"attempts":3}}`+"\n")
}

// TestScansOutliveTheirManager: however often managers die in the middle of an answer, each row is returned once, in
// order, with the end; if it would become another answer, the scan is cut.
func TestScansOutliveTheirManager(t *testing.T) {
	for name, c := range map[string]struct {
		relay     *relay
		stability string
		rows      int // returned before the scan is cut; 20: with its end
		resumes   string
	}{
		"no indexer dies":        {relay: &relay{piece: 3}, rows: 20, resumes: "[]"},
		"before the first row":   {relay: &relay{piece: 3, kills: []int{0}}, rows: 20, resumes: "[ ]"},
		"at a place":             {relay: &relay{piece: 3, kills: []int{6}}, rows: 20, resumes: "[ 6]"},
		"behind a place":         {relay: &relay{piece: 3, kills: []int{8}}, rows: 20, resumes: "[ 6]"},
		"again, before the rows": {relay: &relay{piece: 5, kills: []int{9, 2, 1, 7}}, rows: 20, resumes: "[ 5 5 5 10]"},
		"no progress":            {relay: &relay{piece: 5, kills: []int{9, 1, 1, 1, 1}}, rows: 5, resumes: "[ 5 5 5]"},
		"in the first piece":     {relay: &relay{piece: 5, kills: []int{3}}, rows: 20, resumes: "[ ]"},
		"in an answer of one":    {relay: &relay{piece: 20, kills: []int{3, 19}}, rows: 20, resumes: "[  ]"},
		"at its end":             {relay: &relay{piece: 20, kills: []int{20}}, rows: 20, resumes: "[ 20]"},
		"where no place is":      {relay: &relay{piece: 5, kills: []int{13}, noPlaces: true}, rows: 10, resumes: "[]"},
		"without places":         {relay: &relay{piece: 3, kills: []int{8}, restarts: true}, rows: 6, resumes: "[ 6]"},
		"several timestamps":     {relay: &relay{piece: 5, kills: []int{3, 8}}, stability: "none", rows: 20, resumes: "[  5]"},
		"several, at a place":    {relay: &relay{piece: 5, kills: []int{10}}, stability: "none", rows: 20, resumes: "[ 10]"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(c.relay)
			defer srv.Close()
			cl := Open(Options{Servers: []string{srv.URL}, ViaManagers: true})
			silent(cl)
			defer cl.Close()
			rows, err := cl.Scan(t.Context(), "b/n", v1.ScanRequest{Stability: c.stability})
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			n := 0
			for ; rows.Next(); n++ {
				if id := rows.Row().ID; id != fmt.Sprint("d", n) {
					t.Fatalf("row %d is %s", n, id)
				}
			}
			end, err := rows.End()
			switch {
			case n != c.rows, fmt.Sprint(c.relay.resumes) != c.resumes:
				t.Errorf("%d rows, resumed after %q, want %d and %s", n, c.relay.resumes, c.rows, c.resumes)
			case n == 20 && (err != nil || end.Explain == nil || end.Explain.Attempts != 3):
				t.Errorf("its end is %+v, %v", end, err)
			case n < 20 && !errors.Is(err, ErrCut):
				t.Errorf("%v, want ErrCut", err)
			}
		})
	}
}
