module tidemark/bench/n1ql

go 1.26.0

replace tidemark => ../..

require tidemark v0.0.0
