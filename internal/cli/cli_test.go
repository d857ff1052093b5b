package cli

import (
	"fmt"
	"strings"
	"testing"

	"tidemark/client"
	"tidemark/index"
	"tidemark/kvclient"
)

func TestKeyExpr(t *testing.T) {
	for text, want := range map[string]index.KeyExpr{
		"name":           {Expr: "name"},
		"name DESC":      {Expr: "name", Desc: true},
		" name  desc ":   {Expr: "name", Desc: true},
		"name asc":       {Expr: "name"},
		"`a DESC`":       {Expr: "`a DESC`"},
		"`a DESC` DESC":  {Expr: "`a DESC`", Desc: true},
		"descent":        {Expr: "descent"},
		"META().id\tasc": {Expr: "META().id"},
	} {
		if got := keyExpr(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func TestBuildingLeavesOutWhatWasDropped(t *testing.T) {
	got := building([]client.StatementResult{
		{ID: 1, State: index.Pending}, {ID: 2, State: index.Pending}, {ID: 1, State: index.Dropping},
		{ID: 3, State: index.Pending, Deferred: true}, {ID: 4, State: index.Backfill},
	})
	if fmt.Sprint(got) != "[2 4]" {
		t.Errorf("waits for %v", got)
	}
}

func TestScanTokens(t *testing.T) {
	sf := scanFlags{consistency: "any", tokens: []string{`{"vbucket":68,"vbuuid":"93034431042923","seqno":73}`}}
	req, err := sf.request()
	if err != nil || req.Consistency != "at_plus" || len(req.Tokens) != 1 || req.Tokens[0] != (client.Token{VBucket: 68, VBUUID: 93034431042923, Seqno: 73}) {
		t.Errorf("%+v, %v", req, err)
	}
	sf.tokens = []string{"68"}
	if _, err := sf.request(); exitCode(err) != ExitUsage || !strings.Contains(err.Error(), "--token 68") {
		t.Errorf("a bad token: %v", err)
	}
}

func TestExitCodeOfAMissingKey(t *testing.T) {
	if got := exitCode(fmt.Errorf("get: %w", kvclient.ErrKeyNotFound)); got != ExitNotFound {
		t.Errorf("exit code %d, want %d", got, ExitNotFound)
	}
}
