package accesstest

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// Operator signs one account, which signs users. Its keys live as long as the process.
type Operator struct {
	operator, system, account string // JWTs
	systemID, accountID       string
	accountKey                nkeys.KeyPair
}

// must ends the program: nothing here depends on anything that may fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// New makes an operator with an account that may use JetStream without limits, and the system's.
func New() *Operator {
	op := must(nkeys.CreateOperator())
	o := &Operator{accountKey: must(nkeys.CreateAccount())}
	sys := must(nkeys.CreateAccount())
	o.accountID, o.systemID = must(o.accountKey.PublicKey()), must(sys.PublicKey())

	claims := jwt.NewOperatorClaims(must(op.PublicKey()))
	claims.SystemAccount = o.systemID
	o.operator = must(claims.Encode(op))
	o.system = must(jwt.NewAccountClaims(o.systemID).Encode(op))
	account := jwt.NewAccountClaims(o.accountID)
	account.Name = "kvxfer"
	account.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	o.account = must(account.Encode(op))
	return o
}

// ServerConfig is the part of a server's configuration that makes it know the operator and the account.
func (o *Operator) ServerConfig() string {
	return fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {\n  %s: %s\n  %s: %s\n}\n",
		o.operator, o.systemID, o.systemID, o.system, o.accountID, o.account)
}

// Creds writes the credentials file of a new user of the account and returns its path. With denied the user may not publish there.
func (o *Operator) Creds(dir, name string, denied ...string) (string, error) {
	key := must(nkeys.CreateUser())
	claims := jwt.NewUserClaims(must(key.PublicKey()))
	claims.Name = name
	claims.Pub.Deny = denied
	raw := must(jwt.FormatUserConfig(must(claims.Encode(o.accountKey)), must(key.Seed())))
	path := filepath.Join(dir, name+".creds")
	return path, os.WriteFile(path, raw, 0o600)
}
