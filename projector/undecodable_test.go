package projector

import (
	"fmt"
	"testing"

	"tidemark/expression"
	"tidemark/index"
	"tidemark/projector/feed"
)

// TestAValueThatDoesNotDecode: a document whose value is flagged as compressed but does not decode has entries only
// in indexes on its id; for the others it is counted, with the document as a sample, like any other error.
func TestAValueThatDoesNotDecode(t *testing.T) {
	p, s := benchPump(t, 2, false)
	p.faults = &faults{all: map[index.ID]*fault{}}
	m := &s.plan.part
	program, err := expression.Compile([]expression.Source{{Keys: []index.KeyExpr{{Expr: "`f1`"}}}, {IsPrimary: true}})
	if err != nil {
		t.Fatal(err)
	}
	m.program, m.faults = program, p.faults.of([]index.ID{1, 2})
	event := feed.Event{Kind: feed.Mutation, Seqno: 1, SnapStart: 0, SnapEnd: 10, Key: []byte("doc"), Undecodable: true}
	if err := p.mutation(t.Context(), s, m, &event); err != nil {
		t.Fatal(err)
	}
	event.Undecodable, event.Value, event.Seqno = false, []byte("no JSON"), 2
	if err := p.mutation(t.Context(), s, m, &event); err != nil {
		t.Fatal(err)
	}
	listed, _ := p.faults.list()
	if len(listed) != 1 || listed[0].Index != 1 || listed[0].Expression != 1 || listed[0].Sample.DocID != "doc" ||
		listed[0].Sample.Seqno != 1 {
		t.Errorf("listed: %s", fmt.Sprint(listed))
	}
}
