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

// passer is a manager that relays rows 0 to 19, with a place after each group of some rows, and dies after some rows.
type passer struct {
	piece int
	blind bool // without places
	deaf  bool // it always begins anew

	mu    sync.Mutex
	kills []int // rows of each answer before a kill; empty: never
	asked []string
}

func (p *passer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resume, err := scanport.ParsePlace(r.Header.Get(scanport.HeaderResume))
	from := 0
	if err == nil && resume != nil {
		from, err = strconv.Atoi(string(resume))
	}
	if err != nil || r.Header.Get(scanport.HeaderPlaces) != "true" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if resume != nil && !p.deaf {
		w.Header().Set(scanport.HeaderResume, "true")
	}
	if p.deaf {
		from = 0
	}
	p.mu.Lock()
	p.asked = append(p.asked, string(resume))
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
		case p.blind:
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
		passer    *passer
		stability string
		rows      int // returned before the scan is cut; 20: with its end
		asked     string
	}{
		"no indexer dies":          {passer: &passer{piece: 3}, rows: 20, asked: "[]"},
		"before the first row":     {passer: &passer{piece: 3, kills: []int{0}}, rows: 20, asked: "[ ]"},
		"at a place":               {passer: &passer{piece: 3, kills: []int{6}}, rows: 20, asked: "[ 6]"},
		"behind a place":           {passer: &passer{piece: 3, kills: []int{8}}, rows: 20, asked: "[ 6]"},
		"again, before the rows":   {passer: &passer{piece: 5, kills: []int{9, 2, 1, 7}}, rows: 20, asked: "[ 5 5 5 10]"},
		"no progress":              {passer: &passer{piece: 5, kills: []int{9, 1, 1, 1, 1}}, rows: 5, asked: "[ 5 5 5]"},
		"in the first piece":       {passer: &passer{piece: 5, kills: []int{3}}, rows: 20, asked: "[ ]"},
		"in an answer of one":      {passer: &passer{piece: 20, kills: []int{3, 19}}, rows: 20, asked: "[  ]"},
		"at its end":               {passer: &passer{piece: 20, kills: []int{20}}, rows: 20, asked: "[ 20]"},
		"where no place is":        {passer: &passer{piece: 5, kills: []int{13}, blind: true}, rows: 10, asked: "[]"},
		"without places":           {passer: &passer{piece: 3, kills: []int{8}, deaf: true}, rows: 6, asked: "[ 6]"},
		"rows of many times":       {passer: &passer{piece: 5, kills: []int{3, 8}}, stability: "none", rows: 20, asked: "[  5]"},
		"of many times at a place": {passer: &passer{piece: 5, kills: []int{10}}, stability: "none", rows: 20, asked: "[ 10]"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(c.passer)
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
			case n != c.rows, fmt.Sprint(c.passer.asked) != c.asked:
				t.Errorf("%d rows, asked behind %q, want %d and %s", n, c.passer.asked, c.rows, c.asked)
			case n == 20 && (err != nil || end.Explain == nil || end.Explain.Attempts != 3):
				t.Errorf("its end is %+v, %v", end, err)
			case n < 20 && !errors.Is(err, ErrCut):
				t.Errorf("%v, want ErrCut", err)
			}
		})
	}
}
