"""
The list of calculators on the wire; what each takes and answers is the calculator's own.
"""

from pydantic import Field

from controlplane.web.schemas import Out


class CalculatorOut(Out):
    """
    One calculator.
    """

    name: str = Field(description="Its name.", examples=["kv-cache"])
    summary: str = Field(description="What it tells.", examples=["Memory of keys and values while serving"])
    path: str = Field(description="Where to send its inputs.", examples=["/v1/calculators/kv-cache"])
    required: list[str] = Field(description="Inputs without a default.", examples=[["context_tokens"]])
    optional: list[str] = Field(description="Inputs with one.", examples=[["model", "facts", "sequences", "precision"]])
