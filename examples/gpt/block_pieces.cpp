#include "gpt/block_pieces.hpp"

#include <penstock/zero/layout/row_blocks.hpp>

#include <algorithm>
#include <utility>

namespace gpt {

namespace {

using penstock::ElementCount;
using penstock::Result;
using Kind = BlockPiece::Kind;

/// Columns of activations begin at multiples of 128 bytes, as products on a GPU want them.
constexpr std::uint64_t row_multiple = 64;

BlockPiece norm(Kind kind, std::uint32_t width) {
  return {.kind = kind, .outputs = width, .all_outputs = width};
}

BlockPiece layer(Kind kind, std::uint32_t inputs, std::uint32_t outputs) {
  return {.kind = kind, .inputs = inputs, .outputs = outputs, .all_outputs = outputs};
}

/// The pieces of a block that is not cut.
std::vector<BlockPiece> whole_pieces(const ModelConfig& config) {
  const std::uint32_t width = config.width;
  std::vector<BlockPiece> pieces = {norm(Kind::norm1, width),          layer(Kind::qkv, width, 3 * width),
                                    layer(Kind::proj, width, width),   norm(Kind::norm2, width),
                                    layer(Kind::up, width, 4 * width), layer(Kind::down, 4 * width, width)};
  if (!config.lora) return pieces;
  for (const auto& [adapter, of] :
       {std::pair(Kind::qkv_adapter, Kind::qkv), {Kind::proj_adapter, Kind::proj}}) {
    const auto place = std::ranges::find(pieces, of, &BlockPiece::kind);
    BlockPiece piece = layer(adapter, place->inputs, place->outputs);
    piece.rank = config.lora->rank;
    pieces.insert(place + 1, piece);
  }
  return pieces;
}

const char* matrix_name(Kind kind) {
  switch (kind) {
    case Kind::qkv: return "qkv.weight";
    case Kind::proj: return "proj.weight";
    case Kind::up: return "up.weight";
    case Kind::down: return "down.weight";
    default: return "unknown";
  }
}

/// A layer's rows within the limit; norms and adapters are not cut.
Result<std::vector<BlockPiece>> cut(const BlockPiece& whole, ElementCount limit) {
  if (whole.inputs == 0 || whole.is_adapter()) return std::vector<BlockPiece>{whole};
  PENSTOCK_TRY_ASSIGN(const auto blocks, penstock::zero::cut_rows({.name = matrix_name(whole.kind),
                                                                   .rows = whole.outputs,
                                                                   .row_elements = whole.inputs + 1,
                                                                   .elements_max = limit,
                                                                   .multiple = row_multiple}));
  std::vector<BlockPiece> pieces;
  for (const penstock::zero::RowBlock& rows : blocks) {
    BlockPiece& piece = pieces.emplace_back(whole);
    piece.first = static_cast<std::uint32_t>(rows.first);
    piece.outputs = static_cast<std::uint32_t>(rows.count);
  }
  return pieces;
}

}  // namespace

Result<std::vector<std::vector<BlockPiece>>> block_pieces(const ModelConfig& config) {
  const ElementCount limit = config.unit_elements_max;
  ElementCount of_unit;
  std::vector<std::vector<BlockPiece>> units(1);
  for (const BlockPiece& part : whole_pieces(config)) {
    PENSTOCK_TRY_ASSIGN(const auto pieces, cut(part, limit));
    for (const BlockPiece& piece : pieces) {
      const bool fits = limit.is_zero() || of_unit + piece.element_count() <= limit;
      if (!fits && !units.back().empty()) {
        units.emplace_back();
        of_unit = {};
      }
      units.back().push_back(piece);
      of_unit += piece.element_count();
    }
  }
  return units;
}

}  // namespace gpt
