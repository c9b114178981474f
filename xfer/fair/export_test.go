package fair

// Clients is how many clients a queue knows.
func Clients[K comparable](q *Queue[K]) int { return len(q.clients) }
