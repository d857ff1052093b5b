package feed_test

func blastIfAsked() bool { return false }
