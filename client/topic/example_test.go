package topic_test

import (
	"context"
	"fmt"
	"log"

	"tidemark/client"
	"tidemark/client/topic"
	"tidemark/keyversion"
)

// The keys of every document of a bucket, as documents change. Positions returns where to continue after a restart.
func ExampleOpen() {
	ctx := context.Background()
	managers := client.New()
	defer managers.Close()

	sub, err := topic.Open(topic.Config{
		ID:     "audit",
		Bucket: "world",
		Projectors: func(ctx context.Context) (urls []string, err error) {
			status, err := managers.Status(ctx)
			for _, p := range status.Projectors {
				urls = append(urls, p.Admin)
			}
			return urls, err
		},
		Handle: func(_ context.Context, ev *keyversion.Event) error {
			fmt.Printf("%s %s at vbucket %d, seqno %d\n", ev.Kind, ev.DocID, ev.VBucket, ev.Seqno)
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(sub.Run(ctx))
}

// With TLS a subscriber needs a certificate with the role indexer.
func ExampleTLSFiles() {
	source, err := topic.TLSFiles("ca.pem", "audit.pem", "audit.key")
	if err != nil {
		log.Fatal(err)
	}
	_ = topic.Config{ID: "audit", TLS: source}
}
