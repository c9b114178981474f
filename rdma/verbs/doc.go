// Package verbs is the RDMA provider: one-sided WRITE and READ over reliable connections of libibverbs. (Its terms, rules and tests
// are described here once they stand.)
package verbs
