package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// A statement may be sent to any manager; the index becomes ready everywhere or nowhere.
func ExampleClient_Statement() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := client.New("127.0.0.1:9520", "127.0.0.1:9521", "127.0.0.1:9522")
	defer c.Close()

	results, err := c.Statement(ctx, `CREATE INDEX IF NOT EXISTS by_country ON world(iso_country, name) WHERE kind = "airport"`)
	if err != nil {
		log.Fatal(err)
	}
	var ids []index.ID
	for _, r := range results {
		ids = append(ids, r.ID)
	}
	if err := c.WaitReady(ctx, ids, func(percent float64) { fmt.Printf("building: %.0f %%\n", percent) }); err != nil {
		log.Fatal(err)
	}
}

// Rows of one state that KV really had, with everything it had when the scan began.
func ExampleClient_Scan() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := client.New()
	defer c.Close()

	rows, err := c.Scan(ctx, client.Ref("world", "by_country"), v1.ScanRequest{
		Consistency: "session",
		Limit:       10,
	}.In(v1.Equal("FR")))
	if err != nil {
		log.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		fmt.Println(rows.Row().ID)
	}
	if err := rows.Err(); err != nil { // a scan that was cut off is never mistaken for a complete one
		log.Fatal(err)
	}
}

// How many rows each country has, and the highest name, computed by the indexers.
func ExampleClient_Aggregate() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := client.New()
	defer c.Close()

	groups, err := c.Aggregate(ctx, client.Ref("world", "by_country"), v1.ScanRequest{
		GroupBy:    []int{0},
		Aggregates: []v1.Aggregate{v1.CountRows(), v1.Max(1)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer groups.Close()
	for groups.Next() {
		g := groups.Group()
		fmt.Printf("%s: %s rows, the last one is %s\n", g.Key[0], g.Values[0], g.Values[1])
	}
	if err := groups.Err(); err != nil {
		log.Fatal(err)
	}
}

// An answer page by page, all of one state. A caller that continues too late gets a newer one.
func ExampleClient_Pages() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	c := client.New()
	defer c.Close()

	req := v1.ScanRequest{Limit: 100}.In(v1.Equal("FR"))
	for more := true; more; {
		more = false
		for page, err := range c.Pages(ctx, client.Ref("world", "by_country"), req) {
			var problem *wire.Problem
			switch {
			case errors.As(err, &problem) && problem.Code == "CURSOR_EXPIRED":
				fmt.Println("what follows is of a newer state")
				req.Cursor, req.Newer, more = page.After, true, true
			case err != nil:
				log.Fatal(err)
			}
			for _, row := range page.Rows {
				fmt.Println(row.ID)
			}
		}
	}
}

// Bounds of Go values: several ranges, of keys with two components.
func ExampleScanRequest_In() {
	req := v1.ScanRequest{Limit: 5}.In(
		v1.Equal("FR"),
		v1.Prefix("DE", "Ham"),
		v1.From("GB", "A").Before("GB", "C"),
	)
	for _, r := range req.Ranges {
		body, err := json.Marshal(r)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(body))
	}
	// Output:
	// {"low":["FR"],"high":["FR"],"inclusion":"both"}
	// {"low":["DE","Ham"],"high":["DE","Han"],"inclusion":"low"}
	// {"low":["GB","A"],"high":["GB","C"],"inclusion":"low"}
}

// Ranges that are open at one end.
func ExampleAfter() {
	body, err := json.Marshal([]v1.Range{v1.After(3000), v1.UpTo(12.5), v1.Below("M")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(body))
	// Output:
	// [{"low":[3000],"inclusion":"high"},{"high":[12.5],"inclusion":"both"},{"high":["M"],"inclusion":"low"}]
}

// A scan that shows a certain write: the token comes from the KV client that made it.
func ExampleClient_Count() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := client.New()
	defer c.Close()

	reply, err := c.Count(ctx, client.Ref("world", "by_country"), v1.ScanRequest{
		Consistency: "at_plus",
		Tokens:      []v1.Token{{VBucket: 95, VBUUID: 180471226023443, Seqno: 71}},
	})
	var problem *wire.Problem
	switch {
	case errors.As(err, &problem) && problem.Code == "TOKEN_LOST":
		fmt.Println("KV has failed over without this write")
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println(reply.Count)
	}
}

// Writes that the KV client has acknowledged are shown by all later scans of a user's session, which never show
// anything older than the user has seen.
func ExampleSession() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := client.New()
	defer c.Close()

	var session client.Session // of one user
	if err := session.Wrote("world", v1.Token{VBucket: 95, VBUUID: 180471226023443, Seqno: 71}); err != nil {
		log.Fatal(err)
	}
	reply, err := session.Count(ctx, c, client.Ref("world", "by_country"), v1.ScanRequest{})
	if err != nil {
		log.Fatal(err)
	}
	if reply.SessionLost != "" {
		fmt.Println("not all that was seen before is there:", reply.SessionLost)
	}
	fmt.Println(reply.Count)
	fmt.Println(session.Token()) // for the user's next request, to any process
}

// Every change of the cluster once, in order, across leader changes and restarts.
func ExampleClient_Watch() {
	c := client.New()
	defer c.Close()

	for event, err := range c.Watch(context.Background(), "") {
		if err != nil {
			log.Fatal(err)
		}
		for _, change := range event.Changes {
			fmt.Println(event.ID, change.Kind, change.Name)
		}
	}
}
