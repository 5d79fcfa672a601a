"""
What can go wrong with images, beside `kit.errors`.
"""

from controlplane.kit.errors import Conflict, Unavailable


class WrongOffset(Conflict):
    """
    The chunk does not begin where the content ends: field `expected_offset`.
    """

    code = "wrong_offset"
    title = "The chunk does not begin where the content ends"


class NotUploading(Conflict):
    """
    The image takes no content any more: fields `state`, `received_bytes`.
    """

    code = "not_uploading"
    title = "The image takes no content any more"


class NotReady(Conflict):
    """
    The content is not there, or not checked yet: fields `state`, `received_bytes`, `size_bytes`.
    """

    code = "image_not_ready"
    title = "The image is not ready"


class ImageInUse(Conflict):
    """
    A cluster, or a machine that a tenant holds, uses the image.
    """

    code = "image_in_use"
    title = "The image is in use"


class ContentHeld(Conflict):
    """
    Somebody else writes or checks the content at this moment.
    """

    code = "content_busy"
    title = "The content is being written or checked"


class StoreFailed(Unavailable):
    """
    The place where content is kept does not take or give it.
    """

    code = "image_store_failed"
    title = "The image store does not answer"


class StoreFull(StoreFailed):
    """
    The place where content is kept has no room left.
    """

    code = "image_store_full"
    title = "The image store is full"
