// Package layout is the arithmetic of a KV cache's memory: where the bytes of (layer, K or V, block) lie, which caches
// may exchange blocks, and which ranges move them. It is pure.
//
// Terms. A cache's region holds, in this order, [layer][plane][block]; a plane is K or V of one layer (MLA has one
// plane, the latent). A block is block_tokens tokens of one plane: HND orders it [head][token][dim], NHD
// [token][head][dim], MLA [token][dim]. A piece is (layer, position in the transfer's block list): both planes of one
// block in one layer. A piece is what a target counts.
//
// Sources: the orders HND and NHD are those of vLLM and FlashInfer; MLA is the latent cache of DeepSeek-V2
// (arXiv 2405.04434), one vector per token and layer.
//
// Invariants, each with the test that holds it:
//   - ranges cover every byte of the asked pieces exactly once, from the right source byte, and nothing else:
//     TestRangesAgreeWithNaiveModel
//   - ranges that touch on both sides are merged up to the limit: TestRangesMerge
//   - bounds allow exactly the leased blocks' bytes: TestBoundsAgreeWithNaiveModel
//   - a set holds what was added, whichever form it has, in memory that follows its blocks: TestSetAgreesWithMap, TestSetIsBounded
//   - a mismatch names the first differing field by its wire name: TestCompareNamesTheField
//   - arithmetic never overflows for a layout that Validate accepts: TestValidateBoundsTheArithmetic
package layout
