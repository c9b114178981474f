module github.com/kvxfer/kvxfer

go 1.26.8
