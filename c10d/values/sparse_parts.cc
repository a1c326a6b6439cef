#include <farspan/c10d/values/sparse_parts.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>

#include <cstdint>
#include <string>

#include <farspan/c10d/base/error.h>

namespace farspan {
namespace {

using schema::Layout;

void require(bool holds, const char* otherwise) {
  if (!holds) throw_corrupt_tensor(otherwise);
}

// Whether column `a` of an index matrix comes before column `b`.
bool comes_before(const int64_t* indices, int64_t dims, int64_t count, int64_t a, int64_t b) {
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t left = indices[d * count + a], right = indices[d * count + b];
    if (left != right) return left < right;
  }
  return false;
}

at::Tensor assemble_coo(at::ArrayRef<at::Tensor> parts, at::IntArrayRef sizes, bool coalesced) {
  require(parts.size() == 2, "a wrong number of sparse parts");
  const at::Tensor& indices = parts[0];
  const at::Tensor& values = parts[1];
  require(indices.scalar_type() == at::kLong && indices.dim() == 2, "indices of the wrong kind");
  require(values.dim() >= 1 && values.size(0) == indices.size(1),
          "more or fewer values than indices");
  const int64_t sparse_dims = indices.size(0), count = indices.size(1);
  require(sparse_dims + values.dim() - 1 == static_cast<int64_t>(sizes.size()) &&
              sizes.slice(static_cast<size_t>(sparse_dims)) == values.sizes().slice(1),
          "values of another size than its own");
  const auto* index = indices.const_data_ptr<int64_t>();
  for (int64_t d = 0; d < sparse_dims; ++d) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = index[d * count + i];
      require(at >= 0 && at < sizes[static_cast<size_t>(d)], "an index outside of its size");
    }
  }
  // Out of order costs a flag only: LibTorch then puts it in order where that matters.
  for (int64_t i = 1; coalesced && i < count; ++i) {
    coalesced = comes_before(index, sparse_dims, count, i - 1, i);
  }
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes, values.options().layout(at::kSparse),
                                       coalesced);
}

// CSR, CSC, BSR and BSC: [batch.., compressed and plain dimension, dense..].
struct Compressed {
  const at::Tensor& offsets;      // [batch.., compressed size + 1]: where each row begins
  const at::Tensor& indices;      // [batch.., count]: columns
  const at::Tensor& values;       // [batch.., count, block.., dense..]
  int64_t rows = 0, columns = 0;  // in blocks
};

template <class Index>
void check_indices(const Compressed& sparse) {
  const auto* offsets = sparse.offsets.const_data_ptr<Index>();
  const auto* indices = sparse.indices.const_data_ptr<Index>();
  const int64_t count = sparse.indices.size(-1);
  const int64_t batches = sparse.offsets.numel() / (sparse.rows + 1);
  for (int64_t batch = 0; batch < batches; ++batch) {
    require(offsets[0] == 0 && offsets[sparse.rows] == count, "rows that do not cover its values");
    for (int64_t row = 0; row < sparse.rows; ++row) {
      const int64_t begin = offsets[row], end = offsets[row + 1];
      require(begin <= end && end <= count, "rows that overlap");
      for (int64_t i = begin; i < end; ++i) {
        require(indices[i] >= 0 && indices[i] < sparse.columns, "an index outside of its size");
      }
    }
    offsets += sparse.rows + 1;
    indices += count;
  }
}

at::Tensor assemble_compressed(Layout layout, at::ArrayRef<at::Tensor> parts,
                               at::IntArrayRef sizes) {
  require(parts.size() == 3, "a wrong number of sparse parts");
  Compressed sparse{parts[0], parts[1], parts[2]};
  const bool blocked = layout == Layout::SPARSE_BSR || layout == Layout::SPARSE_BSC;
  const bool by_row = layout == Layout::SPARSE_CSR || layout == Layout::SPARSE_BSR;
  const int64_t batch = sparse.offsets.dim() - 1;
  const int64_t blocks = blocked ? 2 : 0;
  const auto dims = static_cast<int64_t>(sizes.size());
  require(batch >= 0 && sparse.indices.dim() == batch + 1 && dims >= batch + 2 &&
              sparse.values.dim() == batch + 1 + blocks + dims - batch - 2,
          "parts of the wrong dimensions");
  const auto leading = static_cast<size_t>(batch);
  const at::IntArrayRef values_sizes = sparse.values.sizes();
  require(
      sparse.offsets.sizes().slice(0, leading) == sizes.slice(0, leading) &&
          sparse.indices.sizes().slice(0, leading) == sizes.slice(0, leading) &&
          values_sizes.slice(0, leading) == sizes.slice(0, leading) &&
          values_sizes.slice(static_cast<size_t>(batch + 1 + blocks)) == sizes.slice(leading + 2),
      "parts of another size than its own");
  int64_t extent[2] = {sizes[leading], sizes[leading + 1]};
  for (size_t i = 0; blocked && i < 2; ++i) {
    const int64_t block = values_sizes[leading + 1 + i];
    require(block > 0 && extent[i] % block == 0, "blocks that do not divide its size");
    extent[i] /= block;
  }
  sparse.rows = extent[by_row ? 0 : 1];
  sparse.columns = extent[by_row ? 1 : 0];
  require(sparse.offsets.size(-1) == sparse.rows + 1 &&
              sparse.indices.size(-1) == values_sizes[leading],
          "more or fewer values than indices");
  require(sparse.offsets.scalar_type() == sparse.indices.scalar_type(), "indices of two kinds");
  if (sparse.indices.scalar_type() == at::kLong) {
    check_indices<int64_t>(sparse);
  } else {
    require(sparse.indices.scalar_type() == at::kInt, "indices of the wrong kind");
    check_indices<int32_t>(sparse);
  }
  const at::Layout local = layout == Layout::SPARSE_CSR   ? at::kSparseCsr
                           : layout == Layout::SPARSE_CSC ? at::kSparseCsc
                           : layout == Layout::SPARSE_BSR ? at::kSparseBsr
                                                          : at::kSparseBsc;
  return at::_sparse_compressed_tensor_unsafe(sparse.offsets, sparse.indices, sparse.values, sizes,
                                              sparse.values.options().layout(local));
}

}  // namespace

at::Tensor assemble_sparse(Layout layout, at::ArrayRef<at::Tensor> parts, at::IntArrayRef sizes,
                           bool coalesced) {
  return layout == Layout::SPARSE_COO ? assemble_coo(parts, sizes, coalesced)
                                      : assemble_compressed(layout, parts, sizes);
}

void throw_corrupt_tensor(const std::string& what) {
  throw Error(Code::kCorrupt, "a tensor with " + what)
      .advice("the bytes were damaged, or the peer speaks another protocol");
}

}  // namespace farspan
