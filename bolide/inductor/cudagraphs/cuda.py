"""Graphs of CUDA, by `torch.cuda.CUDAGraph` and torch's caching allocator."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, UntypedStorage

from bolide.inductor.cudagraphs.device import Graph, Layout
from bolide.inductor.runtime.cuda.driver_api import begin_capture
from bolide.support.garbage import collector_paused


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without torch's warning that a captured graph is empty."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
        yield


class Cuda:
    """All devices of the type cuda."""

    def stream(self, index: int) -> int:
        """As `Device.stream`."""
        return int(torch.cuda.current_stream(index).cuda_stream)

    def is_capturing(self) -> bool:
        """As `Device.is_capturing`."""
        return torch.cuda.is_current_stream_capturing()

    def pool(self, index: int) -> CudaPool:
        """As `Device.pool`."""
        return CudaPool(index)


class CudaPool:
    """A pool of torch's allocator. An empty graph keeps it, as the allocator drops a pool that no graph uses."""

    def __init__(self, index: int) -> None:
        self.index = index
        with torch.cuda.device(index):
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.name = torch.cuda.graph_pool_handle()
            self.keeper = torch.cuda.CUDAGraph()
            with _quietly(), self._captured(self.keeper):
                pass

    @contextlib.contextmanager
    def _captured(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """What this thread does is captured; other threads may go on, but for what `gate` says. Nothing is collected
        meanwhile: what ends with an object, a graph above all, may be forbidden."""
        capture = torch.cuda.graph(graph, pool=self.name, stream=self.stream, capture_error_mode="thread_local")
        with collector_paused(), torch.cuda.stream(self.stream):  # torch leaves it current behind a capture that fails
            capture.__enter__()
            try:
                yield
            except BaseException:
                with contextlib.suppress(Exception):
                    self._end(capture)
                raise
            self._end(capture)

    def _end(self, capture: torch.cuda.graph) -> None:
        """Ends a capture. Where CUDA takes it for invalid, torch does not end its own part: its generator would refuse
        to draw from then on, and its allocators to capture. So the driver begins another one for it to end. What was
        captured goes at once, and not during a later capture, which that would end."""
        try:
            capture.__exit__(None, None, None)
        except Exception:
            with contextlib.suppress(Exception), _quietly(), torch.cuda.stream(self.stream):
                begin_capture(self.stream.cuda_stream)
                capture.cuda_graph.capture_end()
                capture.cuda_graph.reset()
            raise

    @contextlib.contextmanager
    def allocating(self) -> Iterator[None]:
        """As `Pool.allocating`."""
        torch.cuda.synchronize(self.index)
        self.stream.wait_stream(torch.cuda.current_stream(self.index))
        with torch.cuda.stream(self.stream):
            torch._C._cuda_beginAllocateCurrentThreadToPool(self.index, self.name)
            try:
                yield
            finally:
                torch._C._cuda_endAllocateToPool(self.index, self.name)
                torch._C._cuda_releasePool(self.index, self.name)
        torch.cuda.current_stream(self.index).wait_stream(self.stream)

    @contextlib.contextmanager
    def capture(self) -> Iterator[Graph]:
        """As `Pool.capture`. cuBLAS allocates its workspace anew, in the pool, and for the program's own calls behind
        it once more."""
        with torch.cuda.device(self.index):
            torch._C._cuda_clearCublasWorkspaces()
            graph = torch.cuda.CUDAGraph()
            try:
                with self._captured(graph):
                    yield graph
            finally:
                torch._C._cuda_clearCublasWorkspaces()

    def checkpoint(self) -> object:
        """As `Pool.checkpoint`."""
        return torch._C._cuda_getCheckpointState(self.index, self.name)  # type: ignore[attr-defined]

    def restore(self, checkpoint: object, alive: list[int], dead: list[int]) -> None:
        """As `Pool.restore`."""
        torch._C._cuda_setCheckpointPoolState(self.index, checkpoint, [], alive)  # type: ignore[attr-defined,arg-type]
        for address in dead:
            torch._C._cuda_cudaCachingAllocator_raw_delete(address)

    def free(self, storage: int) -> None:
        """As `Pool.free`."""
        torch._C._free_And_Remove_DeleterFn(storage)

    def forbid(self, storage: int, tensor: Tensor | None, message: str) -> None:
        """As `Pool.forbid`."""
        torch._C._set_storage_data_ptr_access_error_msg(storage, message)  # type: ignore[attr-defined]

    def storage(self, layout: Layout) -> UntypedStorage:
        """As `Pool.storage`."""
        made = torch._C._construct_storage_from_data_pointer(layout.address, layout.device, layout.nbytes)
        assert isinstance(made, UntypedStorage)
        return made

    def tensor(self, layout: Layout, storage: UntypedStorage) -> Tensor:
        """As `Pool.tensor`."""
        described = {
            "nbytes": layout.nbytes,
            "data_ptr": layout.address,
            "size": layout.size,
            "stride": layout.stride,
            "dtype": layout.dtype,
            "device": layout.device,
            "storage_offset": layout.offset,
        }
        return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(described, storage)  # type: ignore[arg-type]
