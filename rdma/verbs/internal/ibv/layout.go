//go:build cgo && linux

package ibv

// #include "shim.h"
import "C"

import (
	"unsafe"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// C reads nic's slices as they are: an index out of range here is a layout that differs.
var (
	same = [1]struct{}{}

	_ = same[unsafe.Sizeof(nic.WR{})-C.sizeof_struct_kv_wr]
	_ = same[unsafe.Offsetof(nic.WR{}.ID)-0]
	_ = same[unsafe.Offsetof(nic.WR{}.Remote)-8]
	_ = same[unsafe.Offsetof(nic.WR{}.RKey)-16]
	_ = same[unsafe.Offsetof(nic.WR{}.First)-20]
	_ = same[unsafe.Offsetof(nic.WR{}.Count)-24]
	_ = same[unsafe.Offsetof(nic.WR{}.Op)-28]
	_ = same[unsafe.Offsetof(nic.WR{}.Signaled)-29]

	_ = same[unsafe.Sizeof(nic.SGE{})-C.sizeof_struct_v_sge]
	_ = same[unsafe.Offsetof(nic.SGE{}.Addr)-0]
	_ = same[unsafe.Offsetof(nic.SGE{}.Len)-8]
	_ = same[unsafe.Offsetof(nic.SGE{}.LKey)-12]

	_ = same[unsafe.Sizeof(nic.Completion{})-C.sizeof_struct_kv_completion]
	_ = same[unsafe.Offsetof(nic.Completion{}.ID)-0]
	_ = same[unsafe.Offsetof(nic.Completion{}.QPN)-8]
	_ = same[unsafe.Offsetof(nic.Completion{}.Bytes)-12]
	_ = same[unsafe.Offsetof(nic.Completion{}.Status)-16]
	_ = same[unsafe.Offsetof(nic.Completion{}.Recv)-17]
	_ = same[unsafe.Offsetof(nic.Completion{}.Raw)-18]

	_ = same[nic.Write-C.KV_WRITE]
	_ = same[nic.Read-C.KV_READ]
	_ = same[nic.Send-C.KV_SEND]
	_ = same[nic.Success-C.KV_SUCCESS]
	_ = same[nic.Flushed-C.KV_FLUSHED]
	_ = same[nic.RemoteAccess-C.KV_REMOTE_ACCESS]
	_ = same[nic.RetriesExceeded-C.KV_RETRIES]
	_ = same[nic.RNRExceeded-C.KV_RNR]
	_ = same[nic.LocalProtection-C.KV_LOCAL_PROTECTION]
	_ = same[nic.RemoteInvalid-C.KV_REMOTE_INVALID]
	_ = same[nic.RemoteOperation-C.KV_REMOTE_OPERATION]
	_ = same[nic.BindFailed-C.KV_BIND_FAILED]
	_ = same[nic.Other-C.KV_OTHER]
)
