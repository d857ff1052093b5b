package core

// take passes an input to the part that handles it.
func (l *Leader) take(in Input) {
	switch in := in.(type) {
	case Tick:
		l.promotion.prune(in.Left)
	case Woken:
	case Changed:
		l.now.stale = true
	case Committed:
		l.sync()
	case *Proposed:
		l.proposed(in)
	case *SplitTried:
		l.splits.tried(in)
	case *RepairPlanned:
		l.moves.planned(in)
	case *ProjectorReported:
		l.intake.projectorReported(in)
	case *IndexerReported:
		l.intake.indexerReported(in)
	case *Registering:
		l.membership.registering(in)
	case *Registered:
		l.sync()
		l.membership.registered(in)
	default:
		l.takeAnswer(in)
	}
}

// takeAnswer handles answers of components.
func (l *Leader) takeAnswer(in Input) {
	switch in := in.(type) {
	case *ProjectorHelloAnswered:
		l.intake.projectorHello(in)
	case *IndexerHelloAnswered:
		l.intake.indexerHello(in)
	case *Handed:
		l.membership.handed(in)
	case *Probed:
		l.membership.probed(in)
	case *OrphansDropped:
		l.membership.orphansDropped(in)
	case *LogsFetched:
		l.ledgers.logsFetched(in)
	case *StreamsStarted:
		l.ledgers.started(in)
	case *BucketChecked:
		l.ledgers.bucketChecked(in)
	case *Polled:
		l.ledgers.polled(in)
	case *RolledBack:
		l.ledgers.rollbacks.rolledBack(in)
	case *Synced:
		l.promotion.synced(in)
	default:
		l.takeRequest(in)
	}
}

// takeRequest handles requests on behalf of users.
func (l *Leader) takeRequest(in Input) {
	switch in := in.(type) {
	case *Stabilize:
		l.promotion.stabilize(in)
	case *ViewQuery:
		reply(l.scene, in.Reply, l.View(in.Bucket))
	case *CopiesQuery:
		reply(l.scene, in.Reply, l.reported(in.All))
	case *ClusterQuery:
		reply(l.scene, in.Reply, l.cluster(in.State))
	case *LackingQuery:
		reply(l.scene, in.Reply, l.lackingWithout(in.Index, in.Drop))
	case *WholeQuery:
		reply(l.scene, in.Reply, l.others(in.State, in.Node))
	case *Placing:
		l.places.placing(in)
	case *Settled:
		l.places.settled(in)
	case *BuildBegun:
		l.sync() // it is committed
		l.builds.begun(in)
	}
}
